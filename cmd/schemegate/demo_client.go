package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// maxDemoAnswer bounds what the demo reads of one answer.
const maxDemoAnswer = 1 << 20

// demoHTTP keeps no connection for later: a kept one that died would make net/http send a POST with an Idempotency-Key again
// by itself.
var demoHTTP = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// demoAnswered is an answer of the API as the story needs it.
type demoAnswered struct {
	status   int
	replayed bool
	body     []byte
	view     demoAuthorization
}

// demoAuthorization is what the story reads of an authorisation, and of a problem.
type demoAuthorization struct {
	ID             string `json:"id"`
	State          string `json:"state"`
	Outcome        string `json:"outcome"`
	Reason         string `json:"reason"`
	Retry          string `json:"retry"`
	Code           string `json:"code"`
	ResponseCode   string `json:"response_code"`
	ApprovalCode   string `json:"approval_code"`
	STAN           string `json:"stan"`
	RRN            string `json:"rrn"`
	Amount         string `json:"amount"`
	ApprovedAmount string `json:"approved_amount"`
	CapturedAmount string `json:"captured_amount"`
	Number         int16  `json:"number"`
	Final          bool   `json:"final"`
	ClosedAs       string `json:"closed_as"`
	PAN            string `json:"pan"`
	Reversal       *struct {
		ID       string `json:"id"`
		State    string `json:"state"`
		Attempts int    `json:"attempts"`
	} `json:"reversal"`
}

// demoPurchase is a purchase of the synthetic card.
func demoPurchase(reference, amount string) map[string]any {
	return map[string]any{
		"client_reference": reference, "type": "purchase", "amount": amount, "currency": "EUR",
		"card":     map[string]any{"pan": "4111111111111111", "expiry": "3012"},
		"merchant": map[string]any{"terminal_id": "DEMO0001", "acceptor_id": "CORNER SHOP", "name_location": "Corner shop, Springfield", "mcc": "5411"},
		"pos":      map[string]any{"entry_mode": "051", "condition_code": "00"},
	}
}

// purchase posts one purchase under a key.
func (s *demoStand) purchase(ctx context.Context, key, reference, amount string) (demoAnswered, error) {
	return s.post(ctx, "/v1/authorizations", key, demoPurchase(reference, amount))
}

// post sends one request under a key.
func (s *demoStand) post(ctx context.Context, path, key string, content any) (demoAnswered, error) {
	body, err := json.Marshal(content)
	if err != nil {
		return demoAnswered{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.apiAddress+path, bytes.NewReader(body))
	if err != nil {
		return demoAnswered{}, err
	}
	request.GetBody = nil
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	return s.do(request)
}

// read gets an authorisation as it is now.
func (s *demoStand) read(ctx context.Context, id string) (demoAuthorization, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.apiAddress+"/v1/authorizations/"+id, nil)
	if err != nil {
		return demoAuthorization{}, err
	}
	answer, err := s.do(request)
	return answer.view, err
}

func (s *demoStand) do(request *http.Request) (demoAnswered, error) {
	request.Header.Set("Authorization", "Bearer "+s.apiKey)
	response, err := demoHTTP.Do(request)
	if err != nil {
		return demoAnswered{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxDemoAnswer))
	if err != nil {
		return demoAnswered{}, err
	}
	answer := demoAnswered{status: response.StatusCode, replayed: response.Header.Get("Idempotent-Replayed") == "true", body: body}
	if err := json.Unmarshal(body, &answer.view); err != nil {
		return answer, fmt.Errorf("read answer of status %d: %w", answer.status, err)
	}
	return answer, nil
}

// get reads a JSON resource into dst, which may be nil; the status is 0 when there was no answer.
func (s *demoStand) get(ctx context.Context, url string, dst any) (status int) {
	body, status := s.fetch(ctx, url)
	if status == http.StatusOK && dst != nil && json.Unmarshal(body, dst) != nil {
		return 0
	}
	return status
}

func (s *demoStand) fetch(ctx context.Context, url string) (body []byte, status int) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0
	}
	request.Header.Set("Authorization", "Bearer "+s.apiKey)
	response, err := demoHTTP.Do(request)
	if err != nil {
		return nil, 0
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(io.LimitReader(response.Body, maxDemoAnswer)); err != nil {
		return nil, 0
	}
	return body, response.StatusCode
}

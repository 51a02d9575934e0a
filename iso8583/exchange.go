package iso8583

import (
	"maps"
	"slices"
)

// setResponseMTIs lays a profile's pairs over the standard's. Where the profile lists no types, theirs come with the pairs.
func (s *Spec) setResponseMTIs(pairs map[string]string, addToList bool, fault faultFunc) {
	if len(pairs) == 0 {
		return
	}
	s.responses, s.requests = make(map[MTI]MTI, len(pairs)), make(map[MTI]MTI, len(pairs))
	for _, text := range slices.Sorted(maps.Keys(pairs)) {
		key := "response_mtis." + text
		request, err := ParseMTI(text)
		if err != nil {
			fault(key, "%w, not %q", err, text)
			continue
		}
		response, err := ParseMTI(pairs[text])
		const function = 0x00F0
		switch {
		case err != nil:
			fault(key, "%w, not %q", err, pairs[text])
		case request&^function != response&^function || request == response:
			fault(key, "the response %s differs from the request %s in the third digit, and in no other", response, request)
		case request.IsRepeat():
			fault(key, "%s is a repeat: the pair goes under what it repeats, and holds for both", request)
		case s.requests[response] != 0:
			fault(key, "%s answers %s already", response, s.requests[response])
		default:
			s.responses[request], s.requests[response] = response, request
		}
	}
	for _, request := range slices.Sorted(maps.Keys(s.responses)) {
		response := s.responses[request]
		if _, both := s.responses[response]; both {
			fault("response_mtis."+request.String(), "%s is a request as well", response)
		}
		if !addToList {
			continue
		}
		repeat := request
		if request.Origin() < repeatableOrigins {
			repeat |= repeatBit // MTI.Repeat knows the standard's requests only
		}
		for _, m := range []MTI{request, repeat, response} {
			if !containsMTI(s.mtis, m) {
				s.mtis = append(slices.Clip(s.mtis), m)
			}
		}
	}
}

// ResponseTo is the type of the answer to a request in this dialect; the answer to a repeat is the same as to its first sending. What is
// no request stays what it is.
func (s *Spec) ResponseTo(m MTI) MTI {
	if response, ok := s.responses[m.WithoutRepeat()]; ok {
		return response
	}
	if s.IsResponse(m) {
		return m
	}
	return m.Response()
}

// IsResponse tells that in this dialect the message is the answer to another one.
func (s *Spec) IsResponse(m MTI) bool {
	if _, ok := s.requests[m]; ok {
		return true
	}
	if _, ok := s.responses[m.WithoutRepeat()]; ok {
		return false
	}
	return m.IsResponse()
}

// Exchange is one type for a request, its repeats and its response in this dialect, that of the request: 1480 gives 1460 where the
// profile pairs them.
func (s *Spec) Exchange(m MTI) MTI {
	if request, ok := s.requests[m]; ok {
		return request
	}
	if _, ok := s.responses[m.WithoutRepeat()]; ok {
		return m.WithoutRepeat()
	}
	return m.Exchange()
}

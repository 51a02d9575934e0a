package link

import (
	"time"

	"go.uber.org/zap"
)

// BusinessDate gives the settlement date of the peer's last cutover notice as its dialect writes it, MMDD in 1987 and YYMMDD in 1993;
// "" before the first. The link keeps it over reconnects, not over restarts.
func (l *Link) BusinessDate() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.date
}

// cutOver notes a new business date. The notice comes again on other lines, and as a repeat: only the first is a cutover.
func (l *Link) cutOver(date string) {
	l.mu.Lock()
	again := l.date == date
	l.date = date
	l.mu.Unlock()
	if again {
		return
	}
	l.log.Info("cutover", zap.String("business_date", date))
	if l.onCutover != nil {
		l.onCutover(date)
	}
}

// noteCutover reads the new business date from the peer's cutover request. Calls in flight are not touched: they keep the date they
// were sent under.
func (s *socket) noteCutover() {
	date := string(s.peeked.AppendValue(nil, s.line.table.businessDate))
	if !plausibleDate(date) {
		s.warnOnce("cutover without a business date", "the cutover request has no date in "+s.line.table.businessDate.String())
		return
	}
	s.line.link.cutOver(date)
}

// plausibleDate reports whether a text is MMDD or YYMMDD. The 29th of February is one, the year being unknown or none of our business.
func plausibleDate(date string) bool {
	if len(date) == len("YYMMDD") {
		date = date[len("YY"):]
	}
	_, err := time.Parse("20060102", "2000"+date) // a leap year
	return err == nil
}

package maintain

import (
	"slices"
	"testing"
	"time"
)

func TestThePace(t *testing.T) {
	const ms = time.Millisecond
	settled := func(worked, held time.Duration) (*pace, time.Duration) {
		p := newPace()
		rest := time.Duration(0)
		for range 200 {
			rest = p.after(worked, held)
		}
		return p, rest
	}
	if p, rest := settled(ms/2, ms); p.work() < ms/2 || p.work()+p.least > lockBudget || rest != leastRest*ms {
		t.Errorf("quick batches: %+v, %v of work, %v of rest", *p, p.work(), rest)
	}
	p, _ := settled(ms/2, ms)
	before := p.work()
	if rest := p.after(ms/2, 90*ms); rest <= leastRest*ms || rest > longRest || p.work() > before || p.least > ms {
		t.Errorf("one of them was held up: %+v, %v", *p, rest)
	}
	p = newPace()
	if rest := p.after(0, max(lockBudget, 4*p.least)); p.rest != leastRest || rest != leastRest*lockBudget*2 {
		t.Errorf("as long as it may take: %+v, %v", *p, rest)
	}
	p = newPace()
	for range 10 {
		p.after(ms/2, 90*ms)
	}
	if p.rest != mostRest {
		t.Errorf("all of them were held up: %+v", *p)
	}
	var rests []int
	for p.rest > leastRest {
		p.after(ms/2, ms)
		rests = append(rests, p.rest)
	}
	if !slices.Equal(rests, []int{30, 22, 16, 12, 10}) {
		t.Errorf("quick ones after that: the rest is %v times as long", rests)
	}
	p = newPace()
	for i := range 200 { // a busy node: most are held up, some are not
		held := 20 * ms
		if i%10 == 0 {
			held = ms
		}
		p.after(ms/4, held)
	}
	if p.work()+p.least > lockBudget {
		t.Errorf("most of them were held up: %+v, %v of work", *p, p.work())
	}
	if p, rest := settled(ms, 11*ms); p.work() < 4*ms || rest != leastRest*11*ms && rest != longRest {
		t.Errorf("a slow disk: %+v, %v of work, %v of rest", *p, p.work(), rest)
	}
	if p, rest := settled(ms/2, 10*time.Second); p.work() > slowDisk/2 || p.work() <= 0 || rest != longRest {
		t.Errorf("nothing works any more: %+v, %v", *p, rest)
	}
}

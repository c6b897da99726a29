package roundrobin

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// Watch keeps in rotation those of backends that answer a GET of path with 200,
// asking each of them every interval, until ctx is done. It returns when each has
// been asked once, so that a Proxy is usable; done is closed when nothing runs
// any more.
//
// A replica that fails its readiness and waits for two intervals gets no new
// requests, and can be shut down without a client noticing.
func (p *Proxy) Watch(ctx context.Context, path string, interval time.Duration, backends ...string) (done <-chan struct{}) {
	client := &http.Client{
		Timeout:   dialTimeout,
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	var asked, running sync.WaitGroup
	for _, backend := range backends {
		asked.Add(1)
		running.Go(func() {
			p.check(ctx, client, backend, path)
			asked.Done()
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					p.check(ctx, client, backend, path)
				}
			}
		})
	}
	asked.Wait()
	end := make(chan struct{})
	go func() {
		running.Wait()
		close(end)
	}()
	return end
}

func (p *Proxy) check(ctx context.Context, client *http.Client, backend, path string) {
	if isReady(ctx, client, "http://"+backend+path) {
		p.Add(backend)
	} else if ctx.Err() == nil {
		p.Remove(backend)
	}
}

func isReady(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<10))
	return resp.StatusCode == http.StatusOK
}

package natsstore

import "time"

// SetPingInterval makes the subscriptions of s notice a silent server sooner.
func (s *Store) SetPingInterval(d time.Duration) { s.pingEvery = d }

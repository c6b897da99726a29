package natsstore

import "testing"

func TestAtLeast211(t *testing.T) {
	for version, want := range map[string]bool{
		"2.9.10": false, "2.10.29": false, "2.11.0": true, "2.11.0-RC.1": true, "v2.15.2": true, "3.0.0": true,
		"1.4.1": false, "dev": true, "2": true,
	} {
		if atLeast211(version) != want {
			t.Errorf("atLeast211(%q) is not %t", version, want)
		}
	}
}

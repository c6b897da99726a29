package natsstore_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/sessionshare/sessionshare/stores/natsstore"
)

// Rule: what the README says a gateway must be permitted is enough.
func TestPermissions(t *testing.T) {
	gateway := []string{
		"$KV.sessionshare.>", "sessionshare.sessionshare.>",
		"$JS.API.STREAM.MSG.GET.KV_sessionshare", "$JS.API.STREAM.INFO.KV_sessionshare",
	}
	migrate := append([]string{
		"$JS.API.INFO", "$JS.API.STREAM.CREATE.KV_sessionshare", "$JS.API.STREAM.UPDATE.KV_sessionshare",
	}, gateway...)
	user := func(name string, publish []string) *server.User {
		return &server.User{Username: name, Password: name, Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: publish},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>", "sessionshare.sessionshare.>"}},
		}}
	}
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		Users: []*server.User{user("gateway", gateway), user("migrate", migrate)},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer srv.Shutdown()
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready")
	}
	openStore(t, srv.ClientURL(), nil, nats.UserInfo("migrate", "migrate"))
	s, err := natsstore.New(connect(t, srv.ClientURL(), nats.UserInfo("gateway", "gateway")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "mcp.k", []byte("v"), time.Hour); err != nil {
		t.Error("Put:", err)
	}
	if found, err := s.Touch(t.Context(), "mcp.k", time.Hour); !found || err != nil {
		t.Errorf("Touch: %t, %v", found, err)
	}
	if err := s.Delete(t.Context(), "mcp.k"); err != nil {
		t.Error("Delete:", err)
	}
	if err := s.Migrate(t.Context()); err == nil {
		t.Error("Migrate went well without the permissions for it")
	}
	got := make(chan struct{}, 100)
	go s.Subscribe(t.Context(), []string{"mcp.c"}, func(string, []byte) { got <- struct{}{} })
	for tries := 0; ; tries++ {
		if err := s.Publish(t.Context(), "mcp.c", []byte("hint")); err != nil {
			t.Fatal("Publish:", err)
		}
		select {
		case <-got:
			return
		case <-time.After(20 * time.Millisecond):
		}
		if tries > 200 {
			t.Fatal("no hint arrived")
		}
	}
}

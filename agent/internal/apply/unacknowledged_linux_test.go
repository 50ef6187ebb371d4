package apply

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
)

func TestConnectionsGiveUpWhatIsNotAcknowledged(t *testing.T) {
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listen.Close()
	conn, err := Tuned(&rest.Config{}).Dial(t.Context(), "tcp", listen.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var millis int
	if cerr := raw.Control(func(fd uintptr) { millis, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	if got := time.Duration(millis) * time.Millisecond; got != unacknowledged {
		t.Errorf("after %s, want %s", got, unacknowledged)
	}
}

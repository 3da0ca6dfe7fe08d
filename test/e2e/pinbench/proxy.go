package pinbench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// A proxy stands between the managers and the API server, and does to their calls what a test
// wants.
type proxy struct {
	url string
	ca  []byte // PEM

	delay atomic.Int64 // nanoseconds that each call waits before the API server gets it; watches do not

	mu      sync.Mutex
	stalled chan struct{} // not nil: watches show nothing until it is closed
	dead    chan struct{} // closed when the connections that are open then die without notice
	server  *http.Server
}

// newProxy starts a proxy at an address of the host.
func newProxy(at netip.Addr, api string, apiCA *x509.CertPool) (*proxy, error) {
	cert, ca, err := selfSigned(at)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(api)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		return nil, err
	}
	p := &proxy{url: "https://" + listener.Addr().String(), ca: ca, dead: make(chan struct{})}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.FlushInterval = -1
	forward.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: apiCA}, ForceAttemptHTTP2: true}
	forward.ErrorLog = log.New(io.Discard, "", 0)
	p.server = &http.Server{ErrorLog: forward.ErrorLog, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("watch") {
				forward.ServeHTTP(&watchWriter{w, r.Context(), p}, r)
				return
			}
			select {
			case <-time.After(time.Duration(p.delay.Load())):
				forward.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		})}
	go func() { _ = p.server.ServeTLS(mortalListener{listener, p}, "", "") }()
	return p, nil
}

func (p *proxy) close() error { return p.server.Close() }

// stall has watches show nothing, also those that are begun later, until the function that it
// returns is called.
func (p *proxy) stall() (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = make(chan struct{})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(p.stalled)
		p.stalled = nil
	}
}

// kill has the connections that are open die without notice: what is written to them goes nowhere,
// and nothing comes.
func (p *proxy) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.dead)
	p.dead = make(chan struct{})
}

// A watchWriter passes on what a watch shows, or does not.
type watchWriter struct {
	http.ResponseWriter
	ctx   context.Context
	proxy *proxy
}

func (w *watchWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *watchWriter) Write(data []byte) (int, error) {
	w.proxy.mu.Lock()
	stalled := w.proxy.stalled
	w.proxy.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-w.ctx.Done():
			return 0, w.ctx.Err()
		}
	}
	return w.ResponseWriter.Write(data)
}

type mortalListener struct {
	net.Listener
	proxy *proxy
}

func (l mortalListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	return &mortalConn{Conn: conn, dead: l.proxy.dead, closed: make(chan struct{})}, nil
}

// A mortalConn is a connection that may die without notice.
type mortalConn struct {
	net.Conn
	dead   chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (c *mortalConn) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

func (c *mortalConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if c.isDead() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *mortalConn) Write(data []byte) (int, error) {
	if c.isDead() {
		return len(data), nil
	}
	return c.Conn.Write(data)
}

// Close leaves the peer of a dead connection without notice, too: the socket stays open until the
// program ends.
func (c *mortalConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	if c.isDead() {
		return nil
	}
	return c.Conn.Close()
}

// selfSigned makes a certificate for an address, and returns it as a CA, too.
func selfSigned(at netip.Addr) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{at.AsSlice()},
		IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, ca, nil
}

var errNoCA = errors.New("the kubeconfig has no CA")

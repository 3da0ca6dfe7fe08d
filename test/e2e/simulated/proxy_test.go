package simulated

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
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

// A proxy forwards the managers' calls to the API server, and injects faults.
type proxy struct {
	url string
	ca  []byte // PEM

	delay atomic.Int64 // nanoseconds that each call waits before the API server gets it; watches do not

	mu      sync.Mutex
	stalled chan struct{} // not nil: watches show nothing until it is closed
	dead    chan struct{} // closed when the connections that are open then die without notice
	server  *http.Server
}

// newProxy starts a proxy at an address of the host, which ends with the test.
func (r *rig) newProxy() *proxy {
	at := r.cluster.HostAddr()
	cert, ca, err := selfSigned(at)
	r.must(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(r.api.CAData)
	target, err := url.Parse(r.api.Host)
	r.must(err)
	listener, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
	r.must(err)
	p := &proxy{url: "https://" + listener.Addr().String(), ca: ca, dead: make(chan struct{})}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.FlushInterval = -1
	forward.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
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
	go func() { _ = p.server.ServeTLS(breakableListener{listener, p}, "", "") }()
	r.Cleanup(func() { _ = p.server.Close() })
	return p
}

// stall makes all watches, including later ones, deliver no events until resume is called.
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

// kill breaks the open connections without an error: data written to them is lost, and none is
// received.
func (p *proxy) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.dead)
	p.dead = make(chan struct{})
}

// A watchWriter forwards the events of a watch unless watches are stalled.
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

type breakableListener struct {
	net.Listener
	proxy *proxy
}

func (l breakableListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	return &breakableConn{Conn: conn, dead: l.proxy.dead, closed: make(chan struct{})}, nil
}

// A breakableConn is a connection that can break without an error.
type breakableConn struct {
	net.Conn
	dead   chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (c *breakableConn) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

func (c *breakableConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if c.isDead() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *breakableConn) Write(data []byte) (int, error) {
	if c.isDead() {
		return len(data), nil
	}
	return c.Conn.Write(data)
}

// Close does not close the socket of a broken connection, so that the peer does not notice: it
// stays open until the program ends.
func (c *breakableConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	if c.isDead() {
		return nil
	}
	return c.Conn.Close()
}

// selfSigned creates a certificate for an address, and returns it also as a CA.
func selfSigned(at netip.Addr) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{at.AsSlice()},
		IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, ca, nil
}

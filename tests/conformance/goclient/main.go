// A client on grpc-go, as kubelets (gRPC probes) and Go proxies have it: health, echoes, an unknown
// method, a deadline. Prints "ok" when the server kept its word. Usage: goclient ADDRESS
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

type raw struct{}

func (raw) Marshal(v any) ([]byte, error)   { return *(v.(*[]byte)), nil }
func (raw) Unmarshal(d []byte, v any) error { *(v.(*[]byte)) = append([]byte(nil), d...); return nil }
func (raw) Name() string                    { return "proto" }

func must(err error, what string) {
	if err != nil {
		fmt.Println(what+":", err)
		os.Exit(1)
	}
}

var desc = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

func echo(conn *grpc.ClientConn, size int) error {
	stream, err := conn.NewStream(context.Background(), desc, "/test.Echo/Echo", grpc.ForceCodec(raw{}))
	if err != nil {
		return err
	}
	for round := 0; round < 5; round++ {
		sent, got := bytes.Repeat([]byte{byte(round)}, size), []byte{}
		if err := stream.SendMsg(&sent); err != nil {
			return err
		}
		if err := stream.RecvMsg(&got); err != nil {
			return err
		}
		if !bytes.Equal(sent, got) {
			return fmt.Errorf("%d bytes came back as %d", len(sent), len(got))
		}
	}
	return stream.CloseSend()
}

func main() {
	conn, err := grpc.NewClient(os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	must(err, "connect")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	health := grpc_health_v1.NewHealthClient(conn)
	answer, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	must(err, "health")
	if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		must(fmt.Errorf("%v", answer.Status), "health")
	}
	_, err = health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "nobody"})
	if status.Code(err) != codes.NotFound {
		must(fmt.Errorf("%v", err), "health of nobody")
	}
	var group sync.WaitGroup
	for number := 0; number < 50; number++ {
		group.Add(1)
		go func() {
			defer group.Done()
			must(echo(conn, []int{0, 10, 16_379, 300_000, 5_000_000}[number%5]), "echo")
		}()
	}
	group.Wait()
	var none []byte
	err = conn.Invoke(ctx, "/test.Echo/Nothing", &none, &none, grpc.ForceCodec(raw{}))
	if status.Code(err) != codes.Unimplemented {
		must(fmt.Errorf("%v", err), "unknown method")
	}
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	hold := []byte("hold")
	err = conn.Invoke(short, "/test.Echo/Echo", &hold, &none, grpc.ForceCodec(raw{}))
	if status.Code(err) != codes.DeadlineExceeded {
		must(fmt.Errorf("%v", err), "deadline")
	}
	fmt.Println("ok")
}

// Command names answers for the names of a cluster's Services: A records over UDP, and nothing outside of the cluster.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	domain = "svc.cluster.local."
	ttl    = 5
)

type cluster struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to log in to the API server")
	address := flag.String("address", "127.0.0.1:53", "where to listen")
	flag.Parse()
	if err := serve(*kubeconfig, *address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(kubeconfig, address string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	known := cluster{
		services: factory.Core().V1().Services().Lister(),
		slices:   factory.Discovery().V1().EndpointSlices().Lister(),
	}
	ctx := context.Background()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	connection, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	buffer := make([]byte, 1500)
	for {
		size, asker, err := connection.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if answer := known.answer(buffer[:size]); answer != nil {
			_, _ = connection.WriteTo(answer, asker)
		}
	}
}

// answer returns the reply to a query, nil to what is none.
func (known cluster) answer(query []byte) []byte {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil || header.Response {
		return nil
	}
	question, err := parser.Question()
	if err != nil {
		return nil
	}
	addresses, exists := known.resolve(question.Name.String())
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired,
			RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{question},
	}
	if !exists {
		reply.RCode = dnsmessage.RCodeNameError
	}
	// A name without a record of the type that is asked for exists all the same: no address of version 6, say.
	if question.Type == dnsmessage.TypeA {
		for _, address := range addresses {
			resource := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: ttl}
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: resource, Body: &dnsmessage.AResource{A: address}})
		}
	}
	packed, err := reply.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// resolve returns the addresses of a name, and whether there is such a name.
func (known cluster) resolve(name string) ([][4]byte, bool) {
	within, found := strings.CutSuffix(strings.ToLower(name), "."+domain)
	if !found {
		return nil, strings.HasSuffix("."+domain, "."+strings.ToLower(name))
	}
	parts := strings.Split(within, ".")
	if len(parts) == 1 {
		return nil, true
	}
	host, rest := "", parts
	if len(parts) == 3 {
		host, rest = parts[0], parts[1:]
	}
	if len(rest) != 2 {
		return nil, false
	}
	service, err := known.services.Services(rest[1]).Get(rest[0])
	if err != nil {
		return nil, false
	}
	if service.Spec.ClusterIP != corev1.ClusterIPNone {
		if host != "" {
			return nil, false
		}
		return version4([]string{service.Spec.ClusterIP}), true
	}
	addresses := version4(known.endpoints(service, host))
	return addresses, host == "" || len(addresses) > 0
}

// endpoints returns the addresses behind a headless Service, those of one host if it is named.
func (known cluster) endpoints(service *corev1.Service, host string) []string {
	of := labels.Set{discoveryv1.LabelServiceName: service.Name}.AsSelector()
	slices, err := known.slices.EndpointSlices(service.Namespace).List(of)
	if err != nil {
		return nil
	}
	var found []string
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			named := host == "" || (endpoint.Hostname != nil && *endpoint.Hostname == host)
			if ready && named {
				found = append(found, endpoint.Addresses...)
			}
		}
	}
	return found
}

func version4(texts []string) [][4]byte {
	var out [][4]byte
	for _, text := range texts {
		if ip := net.ParseIP(text).To4(); ip != nil {
			out = append(out, [4]byte(ip))
		}
	}
	return out
}

//go:build tools

// Package tools pins the kube-apiserver that the tests run, so that go.sum guards what is built.
package tools

import _ "k8s.io/kubernetes/cmd/kube-apiserver"

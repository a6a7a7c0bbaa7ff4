//go:build tools

// Package tools pins the etcd that the tests run. A module of its own: the API server's pins other etcd libraries.
package tools

import _ "go.etcd.io/etcd/server/v3"

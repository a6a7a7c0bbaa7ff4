"""The gRPC port: transports below, services above.

transport.py          what a transport and a service owe each other: bytes in, bytes out
h2/                   our own transport
grpcio_transport.py   grpc.aio as a transport: the reference
ext_proc.py           one ext_proc stream: bytes to an exchange, replies back
health.py             grpc.health.v1
tls.py                certificates: made in memory, or files that are read again
"""

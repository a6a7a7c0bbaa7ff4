"""The limits of the h2 transport: those of the configuration (`transport:`)."""

from picker.config_transport import TransportLimits as H2Limits

__all__ = ["H2Limits"]

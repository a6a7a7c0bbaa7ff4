"""How each contestant is started, one module each: see `contract` for the shape and `picker` for ours."""

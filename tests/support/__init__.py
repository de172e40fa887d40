"""What tests share and the product never sees: waiting, leak checks, and later servers to talk to."""

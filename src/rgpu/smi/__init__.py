"""rgpu-smi: the pool as nvidia-smi would show it. Looks only; imports neither NumPy nor the client."""

"""The plan of the house: every message that crosses the network, declared once."""

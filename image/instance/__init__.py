"""What every program on an instance shares: agent, gate, trainer. It knows none of them."""

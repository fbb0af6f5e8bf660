"""What the compiler made: compiled HLO, read once into typed values."""

"""What fills the terminal, or lies over it."""

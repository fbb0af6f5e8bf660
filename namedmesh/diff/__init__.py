"""Two plans side by side, and the commands that plan, price and compare without writing code."""

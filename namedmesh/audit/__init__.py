"""The audit: compiled HLO against the plan."""

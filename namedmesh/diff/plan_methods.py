"""What plans can do with the help of rooms further out, entered where plans look it up."""

from namedmesh.diff.sources import summarize_cost
from namedmesh.planning.plan import READERS

READERS["cost"] = summarize_cost

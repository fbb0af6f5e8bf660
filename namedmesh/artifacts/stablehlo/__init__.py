"""The edits of an Artifact's StableHLO when it is loaded."""

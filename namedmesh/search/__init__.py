"""nm.search: meshes, layouts and choices of a program, searched with exact plans."""

"""One framework's launch configurations a module: names, writing, reading."""

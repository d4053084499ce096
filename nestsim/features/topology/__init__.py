"""What a network is made of: record, document, and a picture drawn by hand."""

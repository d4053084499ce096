"""What a result says, once, as data; terminal, page, picture and Markdown render it."""

"""What commands share: options, streams, folders of results, progress."""

"""Score and Reference -> one HTML file."""

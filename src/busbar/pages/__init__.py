"""Pages of taps: rows on the wire, and Arrow columns."""

"""Plain objects as bytes and back, without executing anything: serialize, deserialize, register_plain."""

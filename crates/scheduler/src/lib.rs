//! Shares, leases, caps and priorities as pure policy.

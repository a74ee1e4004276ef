//! Messages, rings and pages that cross process boundaries.

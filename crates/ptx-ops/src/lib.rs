//! What each PTX operation computes, as plain functions.

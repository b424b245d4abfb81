//! AMX: tiles of bfloat16 products (Intel SDM, volume 2).

/// Whether this process may use tiles.
pub(crate) fn is_available() -> bool {
    false
}

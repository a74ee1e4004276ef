//! What tiles need of the vector registers of x86-64, by the same names for each instruction set.

use mica_ptx_ops::multiply::NAN;

/// Sixteen elements.
pub(super) mod avx512 {
    use super::NAN;
    use std::arch::x86_64::{
        __m512, __mmask16, _CMP_UNORD_Q, _mm512_add_ps, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
        _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_mask_storeu_ps,
        _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    };

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) fn zero() -> __m512 {
        _mm512_setzero_ps()
    }

    /// The first `count` elements, or all.
    #[inline]
    pub(in super::super) fn mask(count: usize) -> __mmask16 {
        ((1_u32 << count.min(16)) - 1) as __mmask16
    }

    /// Zeros where the mask has none.
    ///
    /// # Safety
    /// Elements of the mask are valid for reads.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) unsafe fn load(from: *const f32, mask: __mmask16) -> __m512 {
        // SAFETY: the contract.
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }

    /// # Safety
    /// Sixteen elements are valid for reads.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) unsafe fn load_all(from: *const f32) -> __m512 {
        // SAFETY: the contract.
        unsafe { _mm512_loadu_ps(from) }
    }

    /// # Safety
    /// Elements of the mask are valid for writes.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) unsafe fn store(to: *mut f32, mask: __mmask16, x: __m512) {
        // SAFETY: the contract.
        unsafe { _mm512_mask_storeu_ps(to, mask, x) };
    }

    /// One element in all places.
    ///
    /// # Safety
    /// The element is valid for reads.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) unsafe fn spread(from: *const f32) -> __m512 {
        // SAFETY: the contract.
        _mm512_set1_ps(unsafe { from.read() })
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) fn multiply_add(x: __m512, y: __m512, sum: __m512) -> __m512 {
        _mm512_fmadd_ps(x, y, sum)
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) fn add(x: __m512, y: __m512) -> __m512 {
        _mm512_add_ps(x, y)
    }

    /// With one NaN for all.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) fn canonical(x: __m512) -> __m512 {
        let nan = _mm512_castsi512_ps(_mm512_set1_epi32(NAN as i32));
        _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), x, nan)
    }
}

/// Eight elements.
pub(super) mod avx2 {
    use super::NAN;
    use std::arch::x86_64::{
        __m256, __m256i, _CMP_UNORD_Q, _mm256_add_ps, _mm256_blendv_ps, _mm256_castsi256_ps,
        _mm256_cmp_ps, _mm256_cmpgt_epi32, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_maskload_ps,
        _mm256_maskstore_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32,
        _mm256_setzero_ps,
    };

    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(in super::super) fn zero() -> __m256 {
        _mm256_setzero_ps()
    }

    /// The first `count` elements, or all.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(in super::super) fn mask(count: usize) -> __m256i {
        let count = _mm256_set1_epi32(count.min(8) as i32);
        _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
    }

    /// Zeros where the mask has none.
    ///
    /// # Safety
    /// Elements of the mask are valid for reads.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(in super::super) unsafe fn load(from: *const f32, mask: __m256i) -> __m256 {
        // SAFETY: the contract.
        unsafe { _mm256_maskload_ps(from, mask) }
    }

    /// # Safety
    /// Eight elements are valid for reads.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(in super::super) unsafe fn load_all(from: *const f32) -> __m256 {
        // SAFETY: the contract.
        unsafe { _mm256_loadu_ps(from) }
    }

    /// # Safety
    /// Elements of the mask are valid for writes.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(in super::super) unsafe fn store(to: *mut f32, mask: __m256i, x: __m256) {
        // SAFETY: the contract.
        unsafe { _mm256_maskstore_ps(to, mask, x) };
    }

    /// One element in all places.
    ///
    /// # Safety
    /// The element is valid for reads.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(in super::super) unsafe fn spread(from: *const f32) -> __m256 {
        // SAFETY: the contract.
        _mm256_set1_ps(unsafe { from.read() })
    }

    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(in super::super) fn multiply_add(x: __m256, y: __m256, sum: __m256) -> __m256 {
        _mm256_fmadd_ps(x, y, sum)
    }

    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(in super::super) fn add(x: __m256, y: __m256) -> __m256 {
        _mm256_add_ps(x, y)
    }

    /// With one NaN for all.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(in super::super) fn canonical(x: __m256) -> __m256 {
        let nan = _mm256_castsi256_ps(_mm256_set1_epi32(NAN as i32));
        _mm256_blendv_ps(x, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x))
    }
}

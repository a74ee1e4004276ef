use super::*;

#[test]
fn division_and_remainder_by_zero_give_all_ones() {
    assert_eq!(div(U32, 7, 0), 0xffff_ffff);
    assert_eq!(div(S32, 7, 0), 0xffff_ffff);
    assert_eq!(div(U64, 7, 0), u64::MAX);
    assert_eq!(div(U16, 7, 0), 0xffff);
    assert_eq!(rem(U32, 7, 0), 0xffff_ffff);
    assert_eq!(rem(S16, 7, 0), 0xffff);
    assert_eq!(div(S32, 0x8000_0000, 0xffff_ffff), 0x8000_0000);
    assert_eq!(rem(S32, 0x8000_0000, 0xffff_ffff), 0);
    assert_eq!(div(S32, 0xffff_fff9, 2), 0xffff_fffd);
    assert_eq!(rem(S32, 0xffff_fff9, 2), 0xffff_ffff);
    assert_eq!(div(S64, i64::MIN as u64, u64::MAX), i64::MIN as u64);
}

#[test]
fn products_have_high_and_wide_forms() {
    assert_eq!(mul_hi(U32, 0xffff_ffff, 0xffff_ffff), 0xffff_fffe);
    assert_eq!(mul_hi(S32, 0xffff_ffff, 0xffff_ffff), 0);
    assert_eq!(mul_hi(U64, u64::MAX, u64::MAX), u64::MAX - 1);
    assert_eq!(mul_hi(S64, u64::MAX, 5), u64::MAX);
    assert_eq!(mul_wide(S32, 0xffff_ffff, 2), -2i64 as u64);
    assert_eq!(mul_wide(U16, 0xffff, 0xffff), 0xfffe_0001);
    assert_eq!(
        mad_hi(S32, true, 0x7fff_ffff, 0x7fff_ffff, 0x7fff_ffff),
        0x7fff_ffff
    );
    assert_eq!(mul24(true, false, 0xff_ffff, 2), 0xffff_fffe);
    assert_eq!(mul24(false, true, 0xff_ffff, 0xff_ffff), 0xffff_fe00);
}

#[test]
fn saturating_addition_clamps() {
    assert_eq!(add(S32, true, 0x7fff_ffff, 1), 0x7fff_ffff);
    assert_eq!(sub(S32, true, 0x8000_0000, 1), 0x8000_0000);
    assert_eq!(add(S32, false, 0x7fff_ffff, 1), 0x8000_0000);
}

#[test]
fn carries_chain_through_words() {
    let (low, carry) = add_carry(U32, 0xffff_ffff, 1, false);
    assert_eq!((low, carry), (0, true));
    assert_eq!(add_carry(U32, 5, 6, carry), (12, false));
    assert_eq!(sub_carry(U32, 0, 1, true), (0xffff_ffff, false));
    assert_eq!(sub_carry(U64, 5, 4, false), (0, true));
    assert_eq!(sub_carry(U64, 5, 5, false), (u64::MAX, false));
    assert_eq!(add_carry(U64, u64::MAX, u64::MAX, true), (u64::MAX, true));
}

#[test]
fn shifts_clamp() {
    assert_eq!(shl(U32, 1, 32), 0);
    assert_eq!(shl(U32, 1, 31), 0x8000_0000);
    assert_eq!(shr(S32, 0x8000_0000, 99), 0xffff_ffff);
    assert_eq!(shr(U32, 0x8000_0000, 32), 0);
    assert_eq!(shr(S64, u64::MAX << 63, 64), u64::MAX);
    assert_eq!(shf_left(true, 0x8000_0000, 1, 33), 3);
    assert_eq!(shf_left(false, 0xdead_beef, 1, 40), 0xdead_beef);
    assert_eq!(shf_right(false, 0xdead_beef, 0x1234, 32), 0x1234);
    assert_eq!(shf_right(true, 0xdead_beef, 0x1234, 32), 0xdead_beef);
}

#[test]
fn bit_fields() {
    assert_eq!(bfe(U32, 0xabcd_1234, 8, 8), 0x12);
    assert_eq!(bfe(S32, 0x0000_8000, 8, 8), 0xffff_ff80);
    assert_eq!(bfe(S32, 0x8000_0000, 28, 20), 0xffff_fff8);
    assert_eq!(bfe(U32, 0xffff_ffff, 4, 0), 0);
    assert_eq!(bfe(S32, 0x8000_0000, 40, 4), 0xffff_ffff);
    assert_eq!(bfi(U32, 0xff, 0, 4, 4), 0xf0);
    assert_eq!(bfi(U32, 0xff, 0x1234, 32, 4), 0x1234);
    assert_eq!(bfind(U32, false, 0), u32::MAX);
    assert_eq!(bfind(U32, false, 0x100), 8);
    assert_eq!(bfind(U32, true, 0x100), 23);
    assert_eq!(bfind(S32, false, 0xffff_fffe), 0);
    assert_eq!(bfind(S32, false, 0xffff_ffff), u32::MAX);
    assert_eq!(bmsk(false, 4, 8), 0xff0);
    assert_eq!(bmsk(false, 0, 40), u32::MAX);
    assert_eq!(bmsk(true, 32, 33), 1);
    assert_eq!(szext(true, false, 0x80, 8), 0xffff_ff80);
    assert_eq!(szext(false, false, 0xffff, 8), 0xff);
    assert_eq!(szext(true, true, 0xff, 32), 0);
    assert_eq!(brev(U32, 1), 0x8000_0000);
    assert_eq!(clz(U32, 0), 32);
    assert_eq!(clz(U64, 1), 63);
    assert_eq!(popc(U32, 0xf0f0), 8);
    assert_eq!(fns(0b1011_0000, 0, 2), 5);
    assert_eq!(fns(0b1011_0000, 7, -2), 5);
    assert_eq!(fns(0b1011_0000, 5, 0), 5);
    assert_eq!(fns(0b1, 0, 2), u32::MAX);
}

#[test]
fn byte_permutations() {
    let (a, b) = (0x3322_1100, 0x7766_5544);
    assert_eq!(prmt(Permute::Index, a, b, 0x7531), 0x7755_3311);
    assert_eq!(prmt(Permute::Index, 0x80, 0, 0x8888), 0xffff_ffff);
    assert_eq!(prmt(Permute::Forward4, a, b, 1), 0x4433_2211);
    assert_eq!(prmt(Permute::Backward4, a, b, 1), 0x6677_0011);
    assert_eq!(prmt(Permute::Replicate8, a, b, 2), 0x2222_2222);
    assert_eq!(prmt(Permute::EdgeLeft, a, b, 2), 0x3322_2222);
    assert_eq!(prmt(Permute::EdgeRight, a, b, 1), 0x1111_1100);
    assert_eq!(prmt(Permute::Replicate16, a, b, 1), 0x3322_3322);
}

#[test]
fn lop3_follows_its_table() {
    let (a, b, c) = (0xf0f0_1234, 0xcccc_5678, 0xaaaa_9abc);
    assert_eq!(lop3(a, b, c, 0x80), a & b & c);
    assert_eq!(lop3(a, b, c, 0xfe), a | b | c);
    assert_eq!(lop3(a, b, c, 0x96), a ^ b ^ c);
    assert_eq!(lop3(a, b, c, 0xe8), (a & b) | (a & c) | (b & c));
    assert_eq!(lop3(a, b, c, 0x60), a & (b ^ c));
}

#[test]
fn dot_products() {
    assert_eq!(dp4a(false, false, 0x0102_0304, 0x0101_0101, 5), 15);
    assert_eq!(dp4a(true, true, 0xffff_ffff, 0x0202_0202, 0), -8i32 as u32);
    assert_eq!(dp2a(true, false, false, 0xffff_0002, 0x0000_0503, 1), 2);
    assert_eq!(dp2a(false, false, true, 0x0001_0002, 0x0503_0000, 0), 11);
    assert_eq!(sad(S32, 0xffff_ffff, 3, 10), 14);
    assert_eq!(sad(U32, 1, 3, 10), 12);
}

//! Changes PTX so that it often still parses: whole statements and words change places.
//!
//! Bytes at random rarely get past the parser; here one case in four is left to them.

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }
}

/// Numbers at the edges of what instructions take.
const NUMBERS: [&str; 12] = [
    "0",
    "1",
    "-1",
    "31",
    "32",
    "33",
    "63",
    "64",
    "255",
    "0x7fffffff",
    "0x80000000",
    "0xffffffffffffffff",
];

/// Modifiers that instructions share.
const PARTS: [&str; 24] = [
    ".u8",
    ".s16",
    ".u16",
    ".b32",
    ".s32",
    ".u32",
    ".f32",
    ".b64",
    ".s64",
    ".u64",
    ".f64",
    ".f16",
    ".f16x2",
    ".b128",
    ".v2",
    ".v4",
    ".shared",
    ".global",
    ".local",
    ".volatile",
    ".sat",
    ".ftz",
    ".cc",
    ".wide",
];

/// The text with something changed, by a seed. `None` where nothing fits, and once in four times, when
/// bytes should be changed instead.
pub fn text(text: &str, seed: u32) -> Option<String> {
    let mut rng = Rng(u64::from(seed) << 1 | 1);
    for _ in 0..4 {
        rng.below(2);
    }
    match rng.below(4) {
        0 => None,
        1 => statement(text, &mut rng),
        2 => word(text, &mut rng),
        _ => part(text, &mut rng),
    }
}

/// Copies, moves or removes one statement.
fn statement(text: &str, rng: &mut Rng) -> Option<String> {
    let mut list: Vec<&str> = text.split_inclusive(';').collect();
    if list.len() < 3 {
        return None;
    }
    let (from, to) = (rng.below(list.len()), rng.below(list.len()));
    let picked = list[from];
    match rng.below(3) {
        0 => list.insert(to, picked),
        1 => {
            list.remove(from);
        }
        _ => list.swap(from, to),
    }
    Some(list.concat())
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "%_$".contains(c)
}

/// Where words are.
fn words(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (is_word(c), start) {
            (true, None) => start = Some(at),
            (false, Some(begin)) => {
                found.push((begin, at));
                start = None;
            }
            _ => {}
        }
    }
    found
}

fn replaced(text: &str, (begin, end): (usize, usize), by: &str) -> String {
    format!("{}{by}{}", &text[..begin], &text[end..])
}

/// Puts another word of the text, or a number, in a word's place.
fn word(text: &str, rng: &mut Rng) -> Option<String> {
    let list = words(text);
    let old = *list.get(rng.below(list.len()))?;
    let by = if rng.below(3) == 0 {
        NUMBERS[rng.below(NUMBERS.len())]
    } else {
        let (begin, end) = list[rng.below(list.len())];
        &text[begin..end]
    };
    Some(replaced(text, old, by))
}

/// Changes, adds or removes a modifier.
fn part(text: &str, rng: &mut Rng) -> Option<String> {
    let dots: Vec<(usize, usize)> = words(text)
        .into_iter()
        .filter(|(begin, _)| text[..*begin].ends_with('.'))
        .map(|(begin, end)| (begin - 1, end))
        .collect();
    let (begin, end) = *dots.get(rng.below(dots.len()))?;
    Some(match rng.below(3) {
        0 => replaced(text, (begin, end), ""),
        1 => replaced(text, (end, end), PARTS[rng.below(PARTS.len())]),
        _ => replaced(text, (begin, end), PARTS[rng.below(PARTS.len())]),
    })
}

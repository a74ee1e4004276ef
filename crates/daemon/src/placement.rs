//! Which GPU a new virtual GPU goes to. Pure: numbers in, an index or a sentence out.

use mica_control::api::{ApiError, GpuKind, Mode, Percent, Placement};

/// What placement looks at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) index: u32,
    pub(crate) kind: GpuKind,
    pub(crate) total_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) share_reserved_percent: Percent,
    pub(crate) vgpus: u32,
    pub(crate) load_percent: f64,
    /// Why it cannot be used, if it cannot.
    pub(crate) unusable: Option<String>,
    pub(crate) largest: Option<(String, u64)>,
    /// What bounds its unreserved memory besides its size.
    pub(crate) bound: Option<String>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlacementRequest {
    pub(crate) memory_bytes: Option<u64>,
    /// The wanted memory as a part of the GPU's.
    pub(crate) memory_percent: Option<Percent>,
    pub(crate) share_percent: Option<Percent>,
    pub(crate) gpu: Option<u32>,
    pub(crate) placement: Placement,
    pub(crate) mode: Option<Mode>,
    pub(crate) overcommit_memory: bool,
    pub(crate) overcommit_share: bool,
    pub(crate) default_memory_bytes: u64,
}

impl Candidate {
    fn unreserved_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.reserved_bytes)
    }

    /// The limit a wish means on this GPU.
    fn limit_bytes(&self, wish: &PlacementRequest) -> u64 {
        let base = if wish.overcommit_memory {
            self.total_bytes
        } else {
            self.unreserved_bytes()
        };
        let part = wish.memory_percent.map(|p| p.of_bytes(self.total_bytes));
        match (
            wish.memory_bytes.or(part),
            wish.default_memory_bytes,
            wish.share_percent,
        ) {
            (Some(bytes), _, _) => bytes,
            (None, 0, Some(share)) => share.of_bytes(self.total_bytes).min(base),
            (None, 0, None) => base / 2,
            (None, default, _) => default,
        }
    }

    fn refusal(&self, wish: &PlacementRequest) -> Option<ApiError> {
        if let Some(why) = &self.unusable {
            return Some(error(
                "state",
                format!("GPU {} cannot be used: {why}", self.index),
                None,
            ));
        }
        if self.kind == GpuKind::Software && wish.mode == Some(Mode::Direct) {
            return Some(error(
                "enforcement",
                format!(
                    "GPU {} is the software GPU, which is always isolated: direct mode needs an NVIDIA GPU",
                    self.index
                ),
                Some("leave --mode out, or choose another GPU with --gpu".into()),
            ));
        }
        self.lacks_memory(wish).or_else(|| self.lacks_share(wish))
    }

    fn lacks_memory(&self, wish: &PlacementRequest) -> Option<ApiError> {
        let limit = self.limit_bytes(wish);
        let room = match wish.overcommit_memory {
            true => self.total_bytes,
            false => self.unreserved_bytes(),
        };
        if (1..=room).contains(&limit) {
            return None;
        }
        let bound = self.bound.as_ref();
        let bound = bound.map_or(String::new(), |why| format!("; {why}"));
        let (total, asked) = (size(self.total_bytes), size(limit));
        // What the whole GPU does not have, no other virtual GPU can give back.
        if limit > self.total_bytes {
            let text = format!("GPU {} has {total}, {asked} asked{bound}", self.index);
            let hint = "ask for less with --memory";
            return Some(error("no_memory", text, Some(hint.into())));
        }
        let largest = match &self.largest {
            Some((name, bytes)) => format!("; largest virtual GPU: {name} {}", size(*bytes)),
            None => String::new(),
        };
        let text = format!(
            "only {} of {total} is unreserved on GPU {}, {asked} asked{largest}{bound}",
            size(room),
            self.index,
        );
        let hint = "ask for less with --memory, resize or remove a virtual GPU";
        Some(error("no_memory", text, Some(hint.into())))
    }

    fn lacks_share(&self, wish: &PlacementRequest) -> Option<ApiError> {
        let asked = wish.share_percent.unwrap_or_default();
        if self.share_reserved_percent + asked <= Percent::WHOLE || wish.overcommit_share {
            return None;
        }
        let text = format!(
            "only {} % of GPU {} is unreserved, {asked} % asked",
            Percent::WHOLE.saturating_sub(self.share_reserved_percent),
            self.index,
        );
        let hint = "ask for less with --share, or set overcommit_share in the configuration";
        Some(error("no_share", text, Some(hint.into())))
    }
}

/// Chooses a GPU; returns its index and the memory limit there.
pub(crate) fn choose(
    candidates: &[Candidate],
    wish: &PlacementRequest,
) -> Result<(u32, u64), ApiError> {
    let considered: Vec<&Candidate> = candidates
        .iter()
        .filter(|c| wish.gpu.is_none_or(|gpu| gpu == c.index))
        .collect();
    let mut first_refusal = None;
    let mut fitting = Vec::new();
    for candidate in considered {
        match candidate.refusal(wish) {
            Some(refusal) => first_refusal = first_refusal.or(Some(refusal)),
            None => fitting.push(candidate),
        }
    }
    let left = |c: &Candidate| c.unreserved_bytes().saturating_sub(c.limit_bytes(wish));
    let chosen = match wish.placement {
        Placement::Fit => fitting.first().copied(),
        Placement::Spread => fitting.iter().copied().min_by_key(|c| c.vgpus),
        Placement::Pack => fitting.iter().copied().min_by_key(|c| left(c)),
        Placement::LeastLoaded => fitting
            .iter()
            .copied()
            .min_by(|a, b| a.load_percent.total_cmp(&b.load_percent)),
    };
    match chosen {
        Some(candidate) => Ok((candidate.index, candidate.limit_bytes(wish))),
        None => Err(first_refusal.unwrap_or_else(|| match wish.gpu {
            Some(gpu) => error(
                "not_found",
                format!("there is no GPU {gpu}"),
                Some(which_there_are(candidates)),
            ),
            None => error("not_found", "this host offers no GPU".into(), None),
        })),
    }
}

/// The GPUs of this host, in a sentence.
fn which_there_are(candidates: &[Candidate]) -> String {
    let name = |c: &Candidate| format!("GPU {} ({})", c.index, c.kind);
    let names: Vec<String> = candidates.iter().map(name).collect();
    match names.split_last() {
        None => "this host offers no GPU".into(),
        Some((only, [])) => format!("this host has only {only}"),
        Some((last, others)) => {
            let others = others.join(", ");
            format!("this host has {others} and {last}: see `mica gpus`")
        }
    }
}

/// A refusal.
pub(crate) fn error(reason: &str, message: String, hint: Option<String>) -> ApiError {
    ApiError {
        error: message,
        reason: reason.into(),
        hint,
    }
}

/// A number with its noun: `1 process`, `2 processes`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    let noun = if number == 1 { one } else { many };
    format!("{number} {noun}")
}

/// Bytes as people read them.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    for (name, unit) in UNITS {
        if bytes >= unit {
            return match bytes % unit {
                0 => format!("{} {name}", bytes / unit),
                _ => format!("{:.1} {name}", bytes as f64 / unit as f64),
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu(index: u32, reserved_gib: u64, vgpus: u32, load: f64) -> Candidate {
        Candidate {
            index,
            kind: GpuKind::Nvidia,
            total_bytes: 8 * GIB,
            reserved_bytes: reserved_gib * GIB,
            share_reserved_percent: Percent::from(10 * vgpus),
            vgpus,
            load_percent: load,
            unusable: None,
            bound: None,
            largest: (reserved_gib > 0).then(|| ("team-a".into(), reserved_gib * GIB)),
        }
    }

    fn wish(memory_gib: u64, placement: Placement) -> PlacementRequest {
        PlacementRequest {
            memory_bytes: Some(memory_gib * GIB),
            memory_percent: None,
            share_percent: Some(20.into()),
            gpu: None,
            placement,
            mode: None,
            overcommit_memory: false,
            overcommit_share: false,
            default_memory_bytes: 0,
        }
    }

    #[test]
    fn strategies_choose_as_they_say() {
        let gpus = [gpu(0, 4, 2, 90.0), gpu(1, 0, 3, 50.0), gpu(2, 6, 1, 70.0)];
        let choose = |placement| choose(&gpus, &wish(2, placement)).unwrap().0;
        assert_eq!(choose(Placement::Fit), 0);
        assert_eq!(choose(Placement::Spread), 2);
        assert_eq!(choose(Placement::Pack), 2);
        assert_eq!(choose(Placement::LeastLoaded), 1);
    }

    #[test]
    fn no_room_says_how_much_there_is_and_who_has_the_most() {
        let refusal = choose(&[gpu(0, 5, 1, 0.0)], &wish(4, Placement::Fit)).unwrap_err();
        assert_eq!(refusal.reason, "no_memory");
        assert_eq!(
            refusal.error,
            "only 3 GiB of 8 GiB is unreserved on GPU 0, 4 GiB asked; largest virtual GPU: team-a 5 GiB"
        );
    }

    #[test]
    fn more_than_a_whole_gpu_is_not_blamed_on_other_virtual_gpus() {
        let refusal = choose(&[gpu(0, 5, 1, 0.0)], &wish(9, Placement::Fit)).unwrap_err();
        assert_eq!(refusal.reason, "no_memory");
        assert_eq!(refusal.error, "GPU 0 has 8 GiB, 9 GiB asked");
        assert_eq!(refusal.hint.as_deref(), Some("ask for less with --memory"));
    }

    #[test]
    fn overcommit_admits_more_than_there_is_but_not_one_larger_than_the_device() {
        let mut wish = wish(4, Placement::Fit);
        wish.overcommit_memory = true;
        assert!(choose(&[gpu(0, 5, 1, 0.0)], &wish).is_ok());
        wish.memory_bytes = Some(9 * GIB);
        assert!(choose(&[gpu(0, 5, 1, 0.0)], &wish).is_err());
    }

    #[test]
    fn shares_beyond_the_whole_are_refused() {
        let mut wish = wish(1, Placement::Fit);
        wish.share_percent = Some(81.into());
        let refusal = choose(&[gpu(0, 1, 2, 0.0)], &wish).unwrap_err();
        assert_eq!(refusal.reason, "no_share");
        wish.share_percent = Some(80.into());
        assert!(choose(&[gpu(0, 1, 2, 0.0)], &wish).is_ok());
    }

    #[test]
    fn without_a_limit_the_share_decides_and_without_a_share_half_of_the_rest() {
        let mut wish = wish(0, Placement::Fit);
        wish.memory_bytes = None;
        wish.share_percent = Some(25.into());
        assert_eq!(choose(&[gpu(0, 0, 0, 0.0)], &wish).unwrap().1, 2 * GIB);
        wish.share_percent = None;
        assert_eq!(choose(&[gpu(0, 4, 1, 0.0)], &wish).unwrap().1, 2 * GIB);
    }

    #[test]
    fn a_part_of_the_gpu_is_a_part_of_all_its_memory() {
        let mut wish = wish(0, Placement::Fit);
        (wish.memory_bytes, wish.memory_percent) = (None, Some(50.into()));
        assert_eq!(choose(&[gpu(0, 4, 1, 0.0)], &wish).unwrap().1, 4 * GIB);
        assert!(choose(&[gpu(0, 5, 1, 0.0)], &wish).is_err());
    }

    #[test]
    fn three_thirds_fit_and_a_hundredth_more_does_not() {
        let mut wish = wish(1, Placement::Fit);
        let mut gpu = gpu(0, 0, 0, 0.0);
        gpu.share_reserved_percent = "66.6".parse().unwrap();
        wish.share_percent = "33.4".parse().ok();
        assert!(choose(&[gpu.clone()], &wish).is_ok());
        wish.share_percent = "33.41".parse().ok();
        assert!(choose(&[gpu], &wish).is_err());
    }

    #[test]
    fn a_gpu_that_is_not_there_is_answered_with_those_that_are() {
        let mut wish = wish(1, Placement::Fit);
        wish.gpu = Some(7);
        let refusal = choose(&[gpu(0, 0, 0, 0.0), gpu(1, 0, 0, 0.0)], &wish).unwrap_err();
        assert_eq!(refusal.error, "there is no GPU 7");
        let hint = refusal.hint.unwrap();
        assert_eq!(
            hint,
            "this host has GPU 0 (nvidia) and GPU 1 (nvidia): see `mica gpus`"
        );
    }
}

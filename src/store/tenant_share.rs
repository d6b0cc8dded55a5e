//! Shares a bound between tenants.

/// The most that each tenant may keep so that all tenants together keep at most `most`.
/// The part that a tenant with fewer leaves unused is shared by the others.
pub(super) fn tenant_share(counts: impl Iterator<Item = usize>, most: usize) -> usize {
    let mut counts: Vec<usize> = counts.collect();
    counts.sort_unstable();
    let mut left = most;
    for (index, count) in counts.iter().enumerate() {
        let share = left / (counts.len() - index);
        if *count > share {
            return share;
        }
        left -= count;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(counts: &[usize], most: usize, expected: usize) {
        assert_eq!(tenant_share(counts.iter().copied(), most), expected);
    }

    #[test]
    fn what_a_small_tenant_leaves_is_shared_by_the_others() {
        check(&[3], 3, 3);
        check(&[3], 2, 2);
        check(&[2, 4], 5, 3);
        check(&[2, 4], 4, 2);
        check(&[2, 4], 3, 1);
        check(&[1, 1, 10], 6, 4);
    }
}

//! The order of the series on the metrics page.

/// Sorts the families by name, and their series by labels: the exporter keeps both in
/// hash maps, so that two scrapes would list them in different orders. The buckets of
/// a histogram keep theirs.
pub(super) fn sort_families(text: &str) -> String {
    let mut families: Vec<&str> = text
        .split("\n\n")
        .map(str::trim)
        .filter(|family| !family.is_empty())
        .collect();
    families.sort_unstable();
    let mut sorted = String::with_capacity(text.len() + 1);
    for family in families {
        let (mut comments, mut series): (Vec<&str>, Vec<&str>) =
            family.lines().partition(|line| line.starts_with('#'));
        let is_histogram = comments.iter().any(|line| line.ends_with(" histogram"));
        if !is_histogram {
            series.sort_unstable();
        }
        comments.append(&mut series);
        for line in comments {
            sorted.push_str(line);
            sorted.push('\n');
        }
        sorted.push('\n');
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_and_series_are_sorted_and_buckets_stay_in_order() {
        let page = "# HELP b B.\n# TYPE b counter\nb{x=\"2\"} 1\nb{x=\"1\"} 2\n\n\
                    # HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 0\n\
                    a_bucket{le=\"+Inf\"} 0\na_sum 0\na_count 0\n\n";
        let expected = "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 0\n\
                        a_bucket{le=\"+Inf\"} 0\na_sum 0\na_count 0\n\n\
                        # HELP b B.\n# TYPE b counter\nb{x=\"1\"} 2\nb{x=\"2\"} 1\n\n";
        assert_eq!(sort_families(page), expected);
        assert_eq!(sort_families(expected), expected);
    }
}

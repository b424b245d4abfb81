//! Where within a prompt checkpoints are taken.

use super::Point;

/// Points that are nearer to each other are not worth a checkpoint each.
const NEAREST_TOKENS: usize = 64;
/// Ends of turns, from the last one back.
const LAST_TURNS: usize = 2;

/// At most `most` points of `prompt` after its first `from` tokens that are worth a checkpoint, ascending. In the order of
/// their importance: its end, the end of the first turn, the ends of the last turns, and going back from the end by
/// `every_tokens`, twice that, four times, and so on. A turn ends after each of `turn_ends`.
pub(super) fn stops(
    prompt: &[u32],
    from: usize,
    turn_ends: &[u32],
    every_tokens: usize,
    most: usize,
) -> Vec<(usize, Point)> {
    let end = prompt.len();
    let ends: Vec<usize> = (0..end).filter(|at| turn_ends.contains(&prompt[*at])).map(|at| at + 1).collect();
    let mut wanted = vec![(end, Point::Prompt)];
    wanted.extend(ends.first().filter(|_| ends.len() > 1).map(|at| (*at, Point::Root)));
    wanted.extend(ends.iter().rev().take(LAST_TURNS).map(|at| (*at, Point::Within)));
    let steps = (0..usize::BITS).map_while(|i| every_tokens.max(NEAREST_TOKENS).checked_mul(1 << i));
    wanted.extend(steps.map_while(|back| end.checked_sub(back)).map(|at| (at, Point::Within)));
    let mut stops: Vec<(usize, Point)> = Vec::new();
    for (at, point) in wanted {
        let is_far = |other: usize| other.abs_diff(at) >= NEAREST_TOKENS;
        let is_alone = is_far(from) && stops.iter().all(|(other, _)| is_far(*other));
        // What many conversations have in common is worth it however short the question is.
        let is_new = point == Point::Prompt || is_alone || (point == Point::Root && at != end && is_far(from));
        if at > from && is_new && stops.len() < most {
            stops.push((at, point));
        }
    }
    stops.sort_unstable_by_key(|(at, _)| *at);
    stops
}

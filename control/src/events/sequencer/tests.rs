use super::*;

fn frame(process: u8, sequence: u64) -> Frame {
    Frame { sequence, payload: Bytes::from(format!("{process}/{sequence}")) }
}

fn frames(process: u8, sequences: std::ops::Range<u64>) -> Vec<Action> {
    sequences.map(|sequence| Action::Apply(frame(process, sequence))).collect()
}

/// Runs steps and returns what they ask for.
fn after(sequencer: &mut Sequencer, step: impl FnOnce(&mut Sequencer, &mut Vec<Action>)) -> Vec<Action> {
    let mut actions = Vec::new();
    step(sequencer, &mut actions);
    actions
}

fn live(sequencer: &mut Sequencer, frame: Frame) -> Vec<Action> {
    after(sequencer, |sequencer, actions| sequencer.live(frame, actions))
}

fn connect(sequencer: &mut Sequencer) -> Vec<Action> {
    after(sequencer, Sequencer::connected)
}

/// Answers a replay with frames, to its end.
fn answer(sequencer: &mut Sequencer, frames: impl IntoIterator<Item = Frame>) -> Vec<Action> {
    after(sequencer, |sequencer, actions| {
        for frame in frames {
            sequencer.replayed(frame, actions);
        }
        sequencer.replay_ended(actions);
    })
}

/// A sequencer that has applied frames 0 to `next - 1` of process 1.
fn at(next: u64) -> Sequencer {
    let mut sequencer = Sequencer::new(true);
    connect(&mut sequencer);
    answer(&mut sequencer, (0..next).map(|sequence| frame(1, sequence)));
    sequencer
}

fn ask(from: u64) -> Action {
    Action::Replay { from, failures: 0 }
}

#[test]
fn at_start_everything_is_replayed_and_live_frames_wait() {
    let mut sequencer = Sequencer::new(true);
    assert_eq!(connect(&mut sequencer), [ask(0)]);
    assert!(live(&mut sequencer, frame(1, 3)).is_empty());
    assert!(live(&mut sequencer, frame(1, 4)).is_empty());
    let mut expected = frames(1, 0..5);
    expected.push(Action::Current);
    assert_eq!(answer(&mut sequencer, (0..4).map(|sequence| frame(1, sequence))), expected);
    // A frame that came by replay, late on the line.
    assert!(live(&mut sequencer, frame(1, 2)).is_empty());
    assert_eq!(live(&mut sequencer, frame(1, 5)), frames(1, 5..6));
}

#[test]
fn a_gap_is_filled_without_applying_anything_twice() {
    let mut sequencer = at(5);
    assert_eq!(live(&mut sequencer, frame(1, 7)), [ask(4)]);
    assert!(live(&mut sequencer, frame(1, 8)).is_empty());
    let mut expected = frames(1, 5..9);
    expected.push(Action::Current);
    assert_eq!(answer(&mut sequencer, (4..8).map(|sequence| frame(1, sequence))), expected);
}

#[test]
fn a_gap_that_replay_does_not_fill_resets() {
    let mut sequencer = at(5);
    live(&mut sequencer, frame(1, 7));
    let actions = answer(&mut sequencer, [frame(1, 4)]);
    let reset = Action::Reset(ResetReason::Gap { expected: 5, got: 7 });
    assert_eq!(actions, [reset, Action::Apply(frame(1, 7)), Action::Current]);
    // The buffer starts after what was asked for.
    live(&mut sequencer, frame(1, 20));
    let actions = answer(&mut sequencer, [frame(1, 15), frame(1, 16)]);
    assert_eq!(actions[0], Action::Reset(ResetReason::BufferTooShort { asked: 7, got: 15 }));
    assert_eq!(actions[1..3], frames(1, 15..17));
    // Then 17 to 19 are missing still.
    assert_eq!(actions[3], ask(16));
}

#[test]
fn a_hole_within_a_replay_is_asked_for_again() {
    let mut sequencer = at(5);
    live(&mut sequencer, frame(1, 10));
    let actions = answer(&mut sequencer, [4, 5, 6, 9].map(|sequence| frame(1, sequence)));
    assert_eq!(actions, [frames(1, 5..7), vec![ask(6)]].concat());
    let actions = answer(&mut sequencer, (6..10).map(|sequence| frame(1, sequence)));
    assert_eq!(actions, [frames(1, 7..11), vec![Action::Current]].concat());
}

#[test]
fn without_a_replay_socket_a_gap_resets() {
    let mut sequencer = Sequencer::new(false);
    assert_eq!(connect(&mut sequencer), [Action::Current]);
    assert_eq!(live(&mut sequencer, frame(1, 9)), frames(1, 9..10));
    let reset = Action::Reset(ResetReason::Gap { expected: 10, got: 12 });
    assert_eq!(live(&mut sequencer, frame(1, 12)), [reset, Action::Apply(frame(1, 12))]);
    assert_eq!(connect(&mut sequencer), [Action::Reset(ResetReason::Unverified), Action::Current]);
}

#[test]
fn a_lower_number_is_a_restart() {
    for with_replay in [true, false] {
        let mut sequencer = if with_replay { at(5) } else { Sequencer::new(false) };
        if !with_replay {
            live(&mut sequencer, frame(1, 4));
        }
        let actions = live(&mut sequencer, frame(2, 0));
        assert_eq!(actions, [Action::Reset(ResetReason::Restarted), Action::Apply(frame(2, 0))]);
        assert_eq!(live(&mut sequencer, frame(2, 1)), frames(2, 1..2));
    }
    // The first frames of the new process were missed.
    let mut sequencer = at(5);
    assert_eq!(live(&mut sequencer, frame(2, 2)), [Action::Reset(ResetReason::Restarted), ask(0)]);
    let actions = answer(&mut sequencer, (0..3).map(|sequence| frame(2, sequence)));
    assert_eq!(actions, [frames(2, 0..3), vec![Action::Current]].concat());
}

#[test]
fn repeated_frames_are_not_a_restart() {
    let mut sequencer = at(5);
    for sequence in [4, 0, 3] {
        assert!(live(&mut sequencer, frame(1, sequence)).is_empty());
    }
    assert_eq!(sequencer.last(), Some(4));
}

#[test]
fn after_a_reconnect_the_engine_must_show_the_last_frame() {
    // The same process, with news.
    let mut sequencer = at(5);
    assert_eq!(connect(&mut sequencer), [ask(4)]);
    let actions = answer(&mut sequencer, [frame(1, 4), frame(1, 5)]);
    assert_eq!(actions, [Action::Apply(frame(1, 5)), Action::Current]);
    // A new one that published less.
    connect(&mut sequencer);
    live(&mut sequencer, frame(2, 0));
    assert_eq!(answer(&mut sequencer, []), [Action::Reset(ResetReason::Restarted), ask(0)]);
    let actions = answer(&mut sequencer, [frame(2, 0)]);
    assert_eq!(actions, [Action::Apply(frame(2, 0)), Action::Current]);
    // A new one that published as much.
    connect(&mut sequencer);
    let actions = after(&mut sequencer, |sequencer, actions| sequencer.replayed(frame(3, 0), actions));
    assert_eq!(actions, [Action::Reset(ResetReason::Restarted), ask(0)]);
    assert_eq!(answer(&mut sequencer, [frame(3, 0), frame(3, 1)])[..2], frames(3, 0..2));
}

#[test]
fn a_restart_during_a_replay_mixes_nothing() {
    let mut sequencer = at(5);
    live(&mut sequencer, frame(1, 8));
    live(&mut sequencer, frame(1, 9));
    let actions = after(&mut sequencer, |sequencer, actions| {
        sequencer.replayed(frame(1, 4), actions);
        sequencer.replayed(frame(1, 5), actions);
        sequencer.live(frame(2, 0), actions);
    });
    assert_eq!(actions, [frames(1, 5..6), vec![Action::Reset(ResetReason::Restarted), ask(0)]].concat());
    // Frames 8 and 9 of the old process, and 0 of the new one, do not wait any more: the new one's come by replay.
    let actions = answer(&mut sequencer, [frame(2, 0), frame(2, 1)]);
    assert_eq!(actions, [frames(2, 0..2), vec![Action::Current]].concat());
}

#[test]
fn failed_replays_are_tried_again_and_then_left() {
    let mut sequencer = at(5);
    live(&mut sequencer, frame(1, 7));
    let fail = |sequencer: &mut Sequencer| after(sequencer, Sequencer::replay_failed);
    let actions = fail(&mut sequencer);
    assert_eq!(actions, [Action::Reset(ResetReason::ReplayFailed), Action::Replay { from: 0, failures: 1 }]);
    assert_eq!(fail(&mut sequencer), [Action::Replay { from: 0, failures: 2 }]);
    let actions = fail(&mut sequencer);
    assert_eq!(actions, [Action::Incomplete, Action::Apply(frame(1, 7))]);
    assert_eq!(live(&mut sequencer, frame(1, 8)), frames(1, 8..9));
    let reset = Action::Reset(ResetReason::Gap { expected: 9, got: 11 });
    assert_eq!(live(&mut sequencer, frame(1, 11)), [reset, Action::Apply(frame(1, 11))]);
    assert!(sequencer.is_incomplete());
    // Now and then another one is tried; while it is silent, nothing changes.
    let again = Action::Replay { from: 0, failures: 3 };
    assert_eq!(after(&mut sequencer, Sequencer::check), std::slice::from_ref(&again));
    assert!(fail(&mut sequencer).is_empty());
    assert_eq!(live(&mut sequencer, frame(1, 12)), frames(1, 12..13));
    assert_eq!(after(&mut sequencer, Sequencer::check), [again]);
    let rebuilt = [vec![Action::Reset(ResetReason::Rebuild)], frames(1, 0..13), vec![Action::Current]].concat();
    assert_eq!(answer(&mut sequencer, (0..13).map(|sequence| frame(1, sequence))), rebuilt);
    assert!(!sequencer.is_incomplete());
}

#[test]
fn a_new_connection_reads_everything_anew_after_failures() {
    let mut sequencer = Sequencer::new(true);
    connect(&mut sequencer);
    live(&mut sequencer, frame(1, 5));
    for _ in 0..3 {
        after(&mut sequencer, Sequencer::replay_failed);
    }
    assert_eq!(sequencer.last(), Some(5));
    assert_eq!(connect(&mut sequencer), [Action::Reset(ResetReason::Rebuild), ask(0)]);
}

#[test]
fn a_quiet_line_is_checked() {
    let mut sequencer = at(5);
    let quiet = |sequencer: &mut Sequencer| after(sequencer, Sequencer::check);
    assert_eq!(quiet(&mut sequencer), [ask(4)]);
    assert_eq!(answer(&mut sequencer, [frame(1, 4)]), [Action::Current]);
    // A replay socket that is silent for once puts nothing in doubt.
    quiet(&mut sequencer);
    assert!(after(&mut sequencer, Sequencer::replay_failed).is_empty());
    // Frames were lost on the line.
    quiet(&mut sequencer);
    let actions = answer(&mut sequencer, [frame(1, 4), frame(1, 5)]);
    assert_eq!(actions, [Action::Apply(frame(1, 5)), Action::Current, Action::Reconnect]);
    // A later gap is asked for although the check before it found nothing.
    assert_eq!(live(&mut sequencer, frame(1, 9)), [ask(5)]);
}

#[test]
fn what_waits_is_bounded_and_asked_for_again() {
    let mut sequencer = Sequencer::new(true);
    connect(&mut sequencer);
    let big = Bytes::from(vec![0; 16 << 20]);
    for sequence in 0..10 {
        live(&mut sequencer, Frame { sequence, payload: big.clone() });
    }
    assert!(sequencer.waiting_bytes <= MAX_WAITING_BYTES);
    let actions = answer(&mut sequencer, []);
    assert_eq!(actions.len(), 5);
    assert_eq!(live(&mut sequencer, Frame { sequence: 10, payload: big }), [ask(3)]);
}

// The lane of each event: equal calls share one, and so do the members of a loop
// that differ. The same rule as in `unstuck session`.

/** More lanes no longer make a pattern visible. */
const LANES_MAX = 8;

export class Lanes {
  #lanes;

  constructor(timeline) {
    const found = new Map();
    timeline.forEach((entry, order) => {
      const key = keyOf(entry);
      if (!key) return;
      const lane = found.get(key) ?? { key, order, events: 0, cited: false };
      lane.events += 1;
      lane.cited ||= Boolean(entry.loop_id);
      found.set(key, lane);
    });
    // Events cited by a loop matter most, then frequent ones.
    const ranked = [...found.values()].sort((a, b) => b.cited - a.cited || b.events - a.events);
    this.#lanes = ranked.slice(0, LANES_MAX).sort((a, b) => a.order - b.order);
    let letters = 0;
    for (const lane of this.#lanes) {
      lane.letter = lane.key.startsWith("same:") ? String.fromCharCode(65 + letters++) : "≈";
    }
  }

  get count() {
    return this.#lanes.length;
  }

  /** `{lane, letter}`, or null for an event without a lane. */
  laneOf(entry) {
    const key = keyOf(entry);
    const lane = key ? this.#lanes.findIndex((known) => known.key === key) : -1;
    return lane < 0 ? null : { lane, letter: this.#lanes[lane].letter };
  }

  /** Each lane with the first event in it. */
  firstEvents(timeline) {
    return this.#lanes.map(({ key, letter }) => ({ letter, entry: timeline.find((entry) => keyOf(entry) === key) }));
  }
}

function keyOf(entry) {
  if (entry.same > 0) return `same:${entry.same}`;
  return entry.loop_id ? `loop:${entry.loop_id}` : "";
}

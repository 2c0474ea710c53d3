// Which lane of the timeline a request has: they are in the order in which the requests came.

export class Lanes {
  constructor(most) {
    this.most = most;
    this.requests = [];
    /** The lanes that there is room for in the picture. It grows at once, and shrinks when half of it is empty. */
    this.count = 0;
  }

  /** Give a request the next lane, if it has none, is in the picture, which begins at `left`, and one is left. */
  place(request, left) {
    if (this.requests[request.lane] === request) return;
    request.lane = null;
    if (this.requests.length >= this.most || hasLeft(request, left)) return;
    request.lane = this.requests.push(request) - 1;
    this.count = Math.max(this.count, this.requests.length);
  }

  /** Put the lanes in order, without those of requests that have left the picture. Tells whether any other moved. */
  arrange(left) {
    const kept = this.requests.filter((request) => !hasLeft(request, left));
    kept.sort((one, other) => one.arrived - other.arrived || one.id - other.id);
    const moved = kept.some((request, lane) => request.lane !== lane);
    for (const request of this.requests) request.lane = null;
    kept.forEach((request, lane) => {
      request.lane = lane;
    });
    this.requests = kept;
    if (2 * kept.length <= this.count) this.count = kept.length;
    return moved;
  }
}

function hasLeft(request, left) {
  return request.end !== null && Math.max(request.end.at, request.lastSeen) < left;
}

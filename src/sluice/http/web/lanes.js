// Which lane of the timeline a request has: the first that is free, until the request has left the picture.

export class Lanes {
  constructor(most) {
    this.most = most;
    this.taken = [];
    this.count = 0;
    this.hidden = 0;
  }

  /** Give a request a lane, if it has none and one is free of what ended before `left`. */
  place(request, left) {
    if (this.taken[request.lane] === request) return;
    this.release(left);
    let lane = this.taken.findIndex((each) => each === null);
    if (lane < 0) lane = this.taken.length;
    if (lane >= this.most) {
      request.lane = null;
      return;
    }
    request.lane = lane;
    this.taken[lane] = request;
    this.count = Math.max(this.count, lane + 1);
  }

  /** Free the lanes of requests that ended before a moment. */
  release(left) {
    this.taken.forEach((request, lane) => {
      if (request !== null && request.end !== null && Math.max(request.end.at, request.lastSeen) < left) {
        this.taken[lane] = null;
      }
    });
    if (this.taken.length > 0 && this.taken.every((request) => request === null)) {
      this.taken = [];
      this.count = 0;
    }
  }

  /** Return the requests that have a lane, with it. */
  shown() {
    return [...this.taken.entries()].filter(([, request]) => request !== null).map(([lane, request]) => [request, lane]);
  }
}

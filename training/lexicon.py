"""Words that fill the slots of facts: what an attribute is called, what it belongs to, and words that are values.

A noun of `HELD_OUT_NOUNS` never occurs in the training text: they name the relations that the model has never seen.
"""

from __future__ import annotations


def phrases(text: str) -> tuple[str, ...]:
    """Return phrases that are separated by commas."""
    return tuple(phrase.strip() for phrase in " ".join(text.split()).split(",") if phrase.strip())


ATTRIBUTE_NOUNS = phrases(
    """
    password, code, pin, name, number, colour, price, size, weight, height, age, owner, address, phone number, email,
    email address, wifi password, wifi name, door code, room, room number, desk, floor, job, boss, manager, teacher,
    doctor, lawyer, dentist, neighbour, friend, best friend, brother, sister, mother, father, aunt, uncle, wife,
    husband, son, daughter, cousin, favourite colour, favourite food, favourite animal, favourite song, favourite book,
    favourite drink, hobby, instrument, language, country, city, town, street, house number, birthday, birth date,
    birth year, start time, opening time, closing time, departure time, arrival time, date, day, month, year, time,
    place, location, meeting point, meeting time, topic, title, author, publisher, editor, subject, grade, score,
    result, winner, rank, status, version, model, brand, type, shape, material, length, width, depth, speed, power,
    temperature, pressure, volume, distance, cost, fee, budget, salary, rent, tax, discount, total, balance, account,
    account number, card number, order number, invoice number, ticket number, flight number, train number, bus line,
    platform, port, server, user name, login, key, token, secret, secret word, magic word, magic number, safe word,
    hint, answer, label, tag, sign, symbol, letter, initial, flag, emblem, crest, song, anthem, river, lake, mountain,
    forest, capital, mayor, king, queen, president, minister, leader, founder, director, chef, cook, gardener, driver,
    pilot, guard, nurse, guest, visitor, tenant, builder, maker, inventor, supplier, dealer, buyer, seller, partner,
    rival, enemy, hero, pet, dog, cat, horse, car, bike, boat, bus, van, hat, coat, shoe, dress, ring, watch, bag,
    drink,
    meal, dish, soup, cake, fruit, dessert, breakfast, lunch, dinner, recipe, spice, sauce, tea, coffee, wine, game,
    sport, team, club, school, class, course, lesson, exam, degree, office, shop, store, bank, hospital, library,
    museum, station, airport, harbour, bridge, tower, church, market, farm, mill, plan, project, goal, task, role, rule,
    reason, purpose, problem, method, tool, part, spare part, engine, battery, fuel, wheel, screen, printer, camera,
    lens, lamp, light, bell, alarm, lock, locker code, box, shelf, drawer, folder, file, page, chapter, line, column,
    row,
    area code, postcode, zip code, region, district, zone, sector, unit, group, level, category, contact,
    contact person,
    supervisor, assistant, deputy, successor, predecessor, heir, habitat, diet, origin, capacity, limit, range, offset
    """
)
HELD_OUT_NOUNS = phrases(
    """
    nickname, blood type, shoe size, licence plate, allergy, deadline, mascot, landlord, ringtone, tracking number,
    sponsor, motto, nationality, horoscope, surgeon, voltage, serial number, ward, cabin, pharmacist, passport number,
    penalty, warranty, hashtag, extension, playlist, tutor, babysitter, veterinarian, frequency, latitude, wavelength,
    checksum, alias, perfume, hometown, quota, envoy, pseudonym, departure lounge
    """
)
THING_NOUNS = phrases(
    """
    house, garden, mill, boat, ship, car, van, bus, truck, train, engine, printer, server, router, laptop, phone,
    screen, camera, radio, clock, lamp, stove, oven, fridge, kettle, pump, gate, door, window, roof, cellar, kitchen,
    hall, office, library, school, hospital, museum, hotel, cafe, bakery, shop, bank, station, airport, harbour,
    bridge, tower, church, market, farm, barn, stable, factory, workshop, laboratory, theatre, cinema, stadium, pool,
    park, lake, river, island, hill, forest, cave, road, tunnel, canal, dam, team, club, choir, band, orchestra, crew,
    class, course, project, meeting, party, wedding, concert, match, race, trip, tour, flight, order, parcel, letter,
    invoice, ticket, account, file, report, book, song, poem, film, painting, statue, game, robot, machine, rocket,
    satellite, telescope, drone, cat, dog, horse, parrot, cow, goat, rabbit, turtle, safe, box, chest, drawer,
    cupboard, locker, shed, tent, backpack
    """
)
VALUE_WORDS = phrases(
    """
    apple, arrow, autumn, badge, bamboo, banjo, basil, beacon, berry, blossom, bronze, bucket, butter, button, cactus,
    candle, canvas, carrot, castle, cedar, chalk, cherry, cinnamon, clover, cobalt, comet, copper, coral, cotton,
    crane, cricket, crystal, dagger, daisy, desert, diamond, dolphin, dragon, eagle, echo, ember, emerald, falcon,
    feather, fern, fiddle, flame, forest, fountain, fox, frost, garlic, ginger, glacier, granite, hammer, harbor,
    harvest, hazel, heron, honey, horizon, iron, ivory, jacket, jasmine, jungle, kettle, lantern, lavender, lemon,
    lilac, lion, lizard, lobster, magnet, maple, marble, meadow, melon, meteor, mint, mirror, moss, mustard, nectar,
    needle, nutmeg, oak, oasis, ocean, olive, onyx, orchid, otter, oyster, paddle, panther, paper, peach, pebble,
    pepper, piano, pillow, planet, plum, pocket, poppy, pumpkin, puzzle, quartz, quill, rabbit, radish, raven, ribbon,
    rocket, saddle, saffron, sailor, salmon, sapphire, scarlet, shadow, shell, shovel, silk, silver, sparrow, spider,
    spruce, sunset, swan, teapot, thistle, thunder, tiger, timber, tulip, turnip, twig, umbrella, valley, vanilla,
    velvet, violet, violin, walnut, walrus, whisper, willow, winter, wizard, wolf, yellow, zebra, zephyr, swordfish,
    raincoat, sunflower, moonlight, goldfish, bluebird, fireplace
    """
)
SUBJECTS_TAUGHT = phrases(
    "chemistry, history, music, physics, geography, mathematics, drawing, biology, french, german, sport, latin"
)
INSTRUMENTS = phrases("violin, piano, flute, cello, drums, trumpet, harp, guitar, organ, clarinet, accordion, banjo")
LANGUAGES = phrases(
    "French, Spanish, German, Arabic, Greek, Dutch, Polish, Turkish, Danish, Hindi, Korean, Latin, Swahili, Welsh"
)
SPORTS = phrases("tennis, chess, football, rowing, golf, hockey, cricket, judo, swimming, sailing, climbing, cycling")
VEHICLES = phrases(
    "a van, a truck, a bus, a tractor, an old car, a red car, a taxi, a motorbike, a jeep, a tram, a white lorry"
)
MONTH_NAMES = phrases(
    "January, February, March, April, May, June, July, August, September, October, November, December"
)
DAY_NAMES = phrases("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MEASURES = phrases(
    "metres, kilos, litres, grams, miles, minutes, hours, days, weeks, years, degrees, watts, pages, seats, boxes, bags"
)
KIN = phrases("brother, sister, mother, father, aunt, uncle, cousin, neighbour, teacher, boss, friend, dentist")

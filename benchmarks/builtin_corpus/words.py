"""List the words of the grammar, by what they name."""

from collections.abc import Mapping


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace("\n", " ").split(",") if part.strip())


def _forms(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split("|")) for line in text.strip().splitlines())


def _plurals(text: str) -> dict[str, str]:
    found = {}
    for pair in _split(text):
        singular, _, plural = pair.partition("/")
        found[singular] = plural
    return found


PERSONS: Mapping[str, str] = _plurals(
    "man/men, woman/women, boy/boys, girl/girls, child/children, teacher/teachers, student/students, "
    "farmer/farmers, doctor/doctors, nurse/nurses, cook/cooks, driver/drivers, soldier/soldiers, "
    "singer/singers, dancer/dancers, neighbour/neighbours, friend/friends, tourist/tourists, "
    "worker/workers, player/players, baker/bakers, painter/painters, writer/writers, lawyer/lawyers, "
    "engineer/engineers, gardener/gardeners, swimmer/swimmers, runner/runners, climber/climbers, "
    "musician/musicians, fisherman/fishermen, waiter/waiters, customer/customers, shopkeeper/shopkeepers, "
    "grandmother/grandmothers, father/fathers, mother/mothers, sister/sisters, cousin/cousins, "
    "policeman/policemen, firefighter/firefighters, pilot/pilots, judge/judges, manager/managers, "
    "plumber/plumbers, tailor/tailors, guest/guests, passenger/passengers, patient/patients, teenager/teenagers"
)
"""Persons, singular to plural."""

ANIMALS: Mapping[str, str] = _plurals(
    "dog/dogs, cat/cats, horse/horses, cow/cows, goat/goats, sheep/sheep, rabbit/rabbits, bird/birds, "
    "duck/ducks, monkey/monkeys, bear/bears, elephant/elephants, tiger/tigers, fox/foxes, squirrel/squirrels, "
    "puppy/puppies, kitten/kittens, parrot/parrots, donkey/donkeys, deer/deer, owl/owls, whale/whales"
)
"""Animals, singular to plural."""

NOUNS: Mapping[str, tuple[str, ...]] = {
    "looks": _split(
        "young, old, tall, tired, happy, smiling, barefoot, bearded, blond, elderly, friendly, nervous, angry, "
        "quiet, strong, sleepy, bored, proud, shy, cheerful, lonely, busy"
    ),
    "fur": _split("brown, black, white, small, large, grey, spotted, wet, thin, old, hungry, playful, wild, lazy"),
    "colour": _split("red, blue, green, yellow, black, white, brown, grey, pink, orange, purple, striped, dark"),
    "clothes": _split(
        "shirt, jacket, hat, coat, dress, sweater, scarf, skirt, uniform, cap, helmet, raincoat, apron, suit, t-shirt"
    ),
    "food": _split(
        "soup, bread, an apple, rice, noodles, a sandwich, cheese, salad, pancakes, a pizza, fish, grapes, "
        "an omelette, potatoes, a chocolate cake, ice cream, roast chicken, lentils, a bowl of cereal, cookies"
    ),
    "ingredient": _split(
        "onions, carrots, garlic, tomatoes, a lemon, beef, tofu, mushrooms, peppers, shrimp, cabbage, herbs, eggs, "
        "a cucumber, ginger, a melon, butter, flour"
    ),
    "drink": _split("tea, coffee, a glass of water, orange juice, milk, a beer, wine, lemonade, hot chocolate"),
    "instrument": _split("the guitar, the piano, the violin, the drums, the flute, a trumpet, the harp, an accordion"),
    "sport": _split("football, tennis, chess, cards, basketball, hockey, volleyball, golf, table tennis, cricket"),
    "vehicle": _split(
        "a car, a bicycle, a bus, a truck, a motorcycle, a van, a tractor, a boat, a train, a scooter, a taxi"
    ),
    "thing": _split(
        "a box, a bag, a book, a chair, a ladder, an umbrella, a suitcase, a basket, a bottle, a rope, a lamp, "
        "a blanket, a mirror, a camera, a clock, a bucket, a candle, a key, a letter, a map, a pillow, a stick"
    ),
    "device": _split(
        "phone, laptop, printer, washing machine, camera, radio, television, keyboard, router, tablet, dishwasher, "
        "vacuum cleaner, car battery, thermostat, headphones, speaker, monitor, lawn mower, oven, fridge, smoke alarm"
    ),
    "building": _split("a house, a bridge, a wall, a school, a fence, a tower, a shed, a hospital, a road, a stadium"),
    "ball": _split("a ball, a frisbee, a stone, a snowball, a rope, a paper plane"),
    "reading": _split("a newspaper, a book, a letter, a menu, a map, a magazine, a poem, a recipe, the instructions"),
    "mount": _split("a horse, a bicycle, a camel, a skateboard, a scooter, a sledge, a mountain bike, a pony"),
    "mixture": _split("the sauce, batter, soup in a pot, paint, sugar and butter, milk and flour, oil, cement, honey"),
    "worn": _split("a coat, gloves, a helmet, his shoes, her glasses, a life jacket, boots, a mask, a uniform, a hat"),
    "body": _split("her hair, his teeth, their hands, his arms, her face, the baby, both hands, one leg"),
    "weapon": _split("a bow, a rifle, a water pistol, a camera, a telescope, a slingshot"),
    "load": _split("weights, a heavy box, a cart, a log, a sack of potatoes, a sleigh, a fishing net, a table, a rope"),
    "craft": _split("a kite, a small plane, a drone, a sailing boat, a canoe, a hot-air balloon, a model helicopter"),
    "obstacle": _split("a fence, a log, a stone wall, a puddle, a parked car, a hurdle, a pile of leaves, a gate"),
    "floor": _split("the floor, the yard, the street, a wooden bridge, the pavement, a dusty road, the deck"),
    "material": _split("paper, a piece of wood, cloth, cardboard, ice, a brick, a branch, a sheet of metal"),
    "tool": _split("a knife, a hammer, a saw, a sewing machine, a spade, a computer, a drill, a brush, a microscope"),
    "scene": _split(
        "on a sunny day, at night, in the early morning, during a race, at a wedding, in front of a crowd, at a party, "
        "on a wooden floor, in shallow water, on a dirt road, through the grass, beside a swimming pool, on a hill, "
        "at a playground, near some trees, in a busy street, in a small boat, against a brick wall, in the dark, "
        "on a snowy slope, at the edge of a cliff, in a green field, outside a church, behind a fence"
    ),
    "place": _split(
        "in the kitchen, in a park, on the beach, at the station, in the garden, on a stage, in the snow, "
        "by the river, "
        "in a field, on the street, at the market, in the rain, on a bench, in an office, in the mountains, at school, "
        "in a crowded room, on the roof, at the airport, near the lake, under a tree, in the forest, at home, "
        "in front of a shop, on a boat, next to a fire, in a restaurant, on the stairs, in the library, across the road"
    ),
    "city": _split(
        "Paris, London, Berlin, Madrid, Cairo, Nairobi, Lagos, Tokyo, Seoul, Delhi, Mumbai, Beijing, Jakarta, Manila, "
        "Sydney, Toronto, Chicago, Boston, Mexico City, Lima, Bogota, Istanbul, Athens, Rome, Warsaw, Kiev, Oslo, "
        "Vienna, Lisbon, Tehran, Baghdad, Damascus, Karachi, Dhaka, Hanoi, Bangkok"
    ),
    "country": _split(
        "France, Germany, Spain, Egypt, Kenya, Nigeria, Japan, South Korea, India, China, Indonesia, Australia, "
        "Canada, Mexico, Brazil, Turkey, Greece, Italy, Poland, Ukraine, Norway, Iran, Iraq, Syria, Pakistan, Russia, "
        "Britain, Chile, Sudan, Vietnam, Israel, South Africa, the United States, the Netherlands"
    ),
    "official": _split(
        "the president, the prime minister, the mayor, the foreign minister, the central bank, a court, the police, "
        "the government, parliament, the opposition, a spokesman, the army, the governor, the health ministry, "
        "the company, the union, a judge, the finance minister, the airline, the coach, researchers, investigators"
    ),
    "company": _split(
        "the carmaker, the airline, the bank, the retailer, the drug maker, the phone company, the oil company, "
        "the steel maker, the publisher, the software company, the insurer, the railway operator, the brewer"
    ),
    "issue": _split(
        "the budget, a new law, the peace talks, the election, the cease-fire, a trade deal, tax rises, the reform, "
        "the nuclear programme, water shortages, the strike, immigration rules, public debt, the climate agreement, "
        "school meals, prison conditions, oil prices, the flood damage, the vaccine campaign, unemployment, the census"
    ),
    "disaster": _split(
        "an earthquake, a flood, a storm, a bomb, a landslide, a fire, a bus crash, an explosion, a heat wave, "
        "a train accident, an avalanche, a plane crash, clashes, an air strike, a shooting, a building collapse"
    ),
    "day": _split("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "month": _split("January, February, March, April, May, June, July, August, September, October, November, December"),
    "when": _split(
        "today, tomorrow, last night, this morning, next week, on Monday, yesterday, every day, in the evening, "
        "before lunch, at noon, after work, last summer, two days ago, at the weekend, on her birthday, in spring"
    ),
    "number": _split(
        "two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, fifteen, twenty, thirty, forty, fifty"
    ),
    "figure": _split("2, 3, 4.5, 6, 7, 8.1, 10, 12, 15, 19, 25, 30, 48, 60, 75, 120, 200, 350, 480, 900"),
    "topic": _split(
        "cooking, gardening, photography, history, mathematics, travel, music, football, painting, astronomy, "
        "learning a language, investing, programming, yoga, fishing, politics, carpentry, knitting, poetry, marketing"
    ),
    "subject": _split(
        "the economy, religion, freedom of speech, education, the environment, marriage, science, justice, war, "
        "democracy, technology, equality, art, evolution, health care, gun control, the death penalty, taxes, trust"
    ),
    "quality": _split(
        "good, bad, useful, expensive, cheap, difficult, easy, boring, excellent, terrible, beautiful, confusing, "
        "important, dangerous, fair, slow, fast, reliable, strange, funny, simple, heavy, comfortable, noisy, clear"
    ),
    "praise": _split(
        "excellent, wonderful, charming, well made, worth every penny, easy to use, delicious, clean, very helpful, "
        "moving, funny, brilliant, fresh, quiet, gripping, beautifully written, fast, friendly, comfortable, generous"
    ),
    "blame": _split(
        "disappointing, slow, dirty, overpriced, boring, badly made, rude, too loud, confusing, cold, cheaply built, "
        "predictable, far too long, broken on arrival, noisy, bland, cramped, pointless, late, uninspired, stale"
    ),
    "product": _split(
        "film, book, hotel, restaurant, phone, album, camera, museum, game, show, bag, mattress, novel, concert, "
        "course, app, play, tent, coffee maker, series, documentary, sofa, jacket, tour, sequel, bookshop"
    ),
    "aspect": _split(
        "room, service, food, plot, screen, sound, staff, battery, ending, price, acting, design, view, dialogue, "
        "breakfast, delivery, music, manual, location, zip, camera work, software, quality, main character, pace"
    ),
    "feeling": _split(
        "glad, sad, surprised, disappointed, worried, excited, grateful, sorry, relieved, jealous, ashamed, hopeful"
    ),
    "manner": _split(
        "quickly, slowly, carefully, loudly, quietly, happily, together, alone, with great care, in silence, for hours"
    ),
    "substance": _split("water, salt, iron, oil, sugar, glass, wood, copper, air, ice, sand, steam, wool, plastic"),
    "science": _split(
        "the sun, a magnet, the moon, gravity, light, a plant, a battery, the heart, a cell, heat, sound, a lens, "
        "an electric current, the brain, a gene, the wind, a volcano, a planet, blood, an atom, friction, pressure"
    ),
    "code": _split(
        "list, file, string, function, table, array, class, dictionary, database, script, query, loop, button, page, "
        "module, date, image, column, thread, server, test, variable, log, password, index, cache, branch, form"
    ),
    "language": _split("Python, Java, JavaScript, SQL, C, Excel, Ruby, PHP, Linux, Git, Windows, HTML"),
}
"""Nouns, adjectives and phrases by what they stand for."""

VERBS = _forms("""
play|plays|playing|played|instrument
play|plays|playing|played|sport
eat|eats|eating|ate|food
cook|cooks|cooking|cooked|food
cut|cuts|cutting|cut|ingredient
chop|chops|chopping|chopped|ingredient
fry|fries|frying|fried|ingredient
peel|peels|peeling|peeled|ingredient
wash|washes|washing|washed|ingredient
drink|drinks|drinking|drank|drink
pour|pours|pouring|poured|drink
drive|drives|driving|drove|vehicle
ride|rides|riding|rode|vehicle
repair|repairs|repairing|repaired|vehicle
wash|washes|washing|washed|vehicle
buy|buys|buying|bought|vehicle
carry|carries|carrying|carried|thing
hold|holds|holding|held|thing
drop|drops|dropping|dropped|thing
open|opens|opening|opened|thing
paint|paints|painting|painted|thing
lose|loses|losing|lost|thing
find|finds|finding|found|thing
sell|sells|selling|sold|thing
draw|draws|drawing|drew|animal
build|builds|building|built|building
paint|paints|painting|painted|building
climb|climbs|climbing|climbed|building
throw|throws|throwing|threw|ball
catch|catches|catching|caught|ball
kick|kicks|kicking|kicked|ball
read|reads|reading|read|reading
write|writes|writing|wrote|reading
feed|feeds|feeding|fed|animal
chase|chases|chasing|chased|animal
pet|pets|petting|petted|animal
watch|watches|watching|watched|animal
wait for|waits for|waiting for|waited for|vehicle
talk to|talks to|talking to|talked to|person
help|helps|helping|helped|person
hug|hugs|hugging|hugged|person
look at|looks at|looking at|looked at|person
laugh at|laughs at|laughing at|laughed at|person
teach|teaches|teaching|taught|person
follow|follows|following|followed|person
push|pushes|pushing|pushed|vehicle
ride|rides|riding|rode|mount
slice|slices|slicing|sliced|ingredient
stir|stirs|stirring|stirred|mixture
mix|mixes|mixing|mixed|mixture
pour|pours|pouring|poured|mixture
put on|puts on|putting on|put on|worn
take off|takes off|taking off|took off|worn
fold|folds|folding|folded|worn
brush|brushes|brushing|brushed|body
wash|washes|washing|washed|body
raise|raises|raising|raised|body
aim|aims|aiming|aimed|weapon
lift|lifts|lifting|lifted|load
pull|pulls|pulling|pulled|load
fly|flies|flying|flew|craft
steer|steers|steering|steered|craft
jump over|jumps over|jumping over|jumped over|obstacle
run past|runs past|running past|ran past|obstacle
lean against|leans against|leaning against|leaned against|obstacle
point at|points at|pointing at|pointed at|animal
wave at|waves at|waving at|waved at|person
kiss|kisses|kissing|kissed|person
race|races|racing|raced|mount
sweep|sweeps|sweeping|swept|floor
clean|cleans|cleaning|cleaned|floor
cross|crosses|crossing|crossed|floor
cut|cuts|cutting|cut|material
tear|tears|tearing|tore|material
break|breaks|breaking|broke|material
use|uses|using|used|tool
run|runs|running|ran|
skate|skates|skating|skated|
ski|skis|skiing|skied|
surf|surfs|surfing|surfed|
kneel|kneels|kneeling|knelt|
crawl|crawls|crawling|crawled|
shout|shouts|shouting|shouted|
whisper|whispers|whispering|whispered|
work|works|working|worked|
cycle|cycles|cycling|cycled|
practise|practises|practising|practised|
fight|fights|fighting|fought|
celebrate|celebrates|celebrating|celebrated|
sleep|sleeps|sleeping|slept|
dance|dances|dancing|danced|
sing|sings|singing|sang|
walk|walks|walking|walked|
jump|jumps|jumping|jumped|
swim|swims|swimming|swam|
cry|cries|crying|cried|
laugh|laughs|laughing|laughed|
sit|sits|sitting|sat|
stand|stands|standing|stood|
wait|waits|waiting|waited|
smile|smiles|smiling|smiled|
fall|falls|falling|fell|
pray|prays|praying|prayed|
exercise|exercises|exercising|exercised|
""")
"""Verbs: base form, third person, -ing form, past tense, and what their object is (empty for none)."""

MOVES = _forms("""
run|runs|running|ran
sleep|sleeps|sleeping|slept
jump|jumps|jumping|jumped
eat|eats|eating|ate
play|plays|playing|played
swim|swims|swimming|swam
rest|rests|resting|rested
hide|hides|hiding|hid
drink|drinks|drinking|drank
wait|waits|waiting|waited
dig|digs|digging|dug
""")
"""Verbs of animals: base form, third person, -ing form, past tense."""
